"""The command line that both scripts have, and what it does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click
import torch

from hvd_compress.errors import ConfigError, UnsupportedError
from images.data import DataError, ImageData, load_digits, load_images
from images.demo import DEMO_METHODS, print_table
from images.methods import METHODS
from images.model import SmallConvNet
from images.progress import output_is_terminal
from images.ranks import Ranks
from images.report import EpochReport, write_json
from images.training import Distribute, Settings, count_values, train

BATCH_SIZES = {"Fashion-MNIST": 64, "digits": 16}

Train = Callable[[ImageData, Settings], list[EpochReport]]

_OPTIONS = (
    click.option("--compression", type=click.Choice(list(METHODS)), help="How gradients travel. [default: star]"),
    click.option(
        "--ratio", type=float, help="Share of the values that top-k sends, in (0, 1]. [default: 0.01, or chosen]"
    ),
    click.option(
        "--algorithm",
        help="Of the allreduce: ring, tree, recursive_doubling, rabenseifner; of topk's all-gather: ring, bruck; or "
        "auto.",
    ),
    click.option("--engine", help="What moves the bytes: auto, mpi, horovod, torch."),
    click.option("--epochs", type=click.IntRange(min=1), help="[default: 5]"),
    click.option("--batch-size", type=click.IntRange(min=1), help="Of one rank. [default: 64, with the digits 16]"),
    click.option(
        "--lr", type=click.FloatRange(min=0, min_open=True), help="Peak of the learning rate. [default: 0.02]"
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), help="Of the initial weights and the order of images. [default: 1]"
    ),
    click.option(
        "--data-dir", type=click.Path(path_type=Path), help="Folder with the four idx files of Fashion-MNIST."
    ),
    click.option(
        "--json", "json_file", type=click.Path(path_type=Path), help="Write settings and results to this file."
    ),
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where the net is trained."
    ),
    click.option("--demo", is_flag=True, help="Compare several methods on the digits that scikit-learn brings."),
)


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options whose values run() takes."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), function)


def run(
    start: Callable[[str], Ranks],
    compressions: Any,
    distribute: Distribute,
    *,
    demo: bool,
    data_dir: Path | None,
    json_file: Path | None,
    device: str,
    **options: Any,
) -> None:
    """Do what the command line says.

    Args:
        start: joins the job, with this --device, and returns its ranks.
        compressions: the front end's `Compression`.
        distribute: makes a model one that all ranks train.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if demo and (data_dir or not chosen.keys() <= {"epochs", "batch_size", "lr", "seed"}):
        raise click.UsageError("--demo chooses data and methods; only epochs, batch size, lr and seed can be set")
    ranks = start(device)
    ranks.share_cores()
    train_with = partial(train, ranks=ranks, compressions=compressions, distribute=distribute)
    try:
        data = load_digits() if demo else load_images(data_dir)
        settings = Settings(**{"batch_size": BATCH_SIZES[data.name], "device": ranks.device(device), **chosen})
        introduce(data, settings.device, ranks)
        results = (
            compare(data, settings, ranks, train_with) if demo else {settings.compression: train_with(data, settings)}
        )
    except (DataError, ConfigError, UnsupportedError) as error:  # the message says what to change
        refusal = click.ClickException(f"rank {ranks.rank}: {error}")
        refusal.exit_code = 2  # as of the command line's own
        raise refusal from error
    if json_file is not None and ranks.rank == 0:
        facts = {
            "data": data.name,
            "origin": data.origin,
            "train_images": len(data.train),
            "world_size": ranks.size,
            "parameters": count_values(SmallConvNet()),
        }
        write_json(json_file, {**facts, "settings": asdict(settings)}, results)


def compare(data: ImageData, settings: Settings, ranks: Ranks, train_with: Train) -> dict[str, list[EpochReport]]:
    """Train with each method of the demo in turn, and print a table."""
    adapt, results = os.environ.get("HVD_COMPRESS_ADAPT"), {}
    for number, name in enumerate(DEMO_METHODS, start=1):
        # Too short to choose paths of all: but for auto() it compares what is sent.
        os.environ["HVD_COMPRESS_ADAPT"] = adapt or str(int(name == "auto"))
        ranks.say(f"\n{number} of {len(DEMO_METHODS)}: {METHODS[name].label}")
        results[name] = train_with(data, replace(settings, compression=name))
    if ranks.rank == 0:
        print_table(results, ranks.size, terminal=output_is_terminal())
    return results


def introduce(data: ImageData, device: str, ranks: Ranks) -> None:
    """Say what is trained on what, and by how many."""
    ranks.say(f"{data.name} from {data.origin}: {len(data.train)} images for training, {len(data.test)} for testing")
    where = "" if device == "cpu" else f", which train on {torch.cuda.device_count()} GPU(s) a machine"
    ranks.say(f"a convolutional net of {count_values(SmallConvNet()):,} parameters on {ranks.size} rank(s){where}")
    if ranks.size == 1:
        ranks.say(f"nothing is communicated by one rank; for four: {ranks.launch} {' '.join(sys.argv)}")
