"""Train a small convolutional net on images, with compressed gradients, on as many ranks as there are.

    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_images.py --compression star --ratio 0.01
    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_images.py --compression auto
    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_images.py --demo

What makes the training distributed stands in `train`; `train_epoch` is an ordinary loop with a stop-watch in it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from images.data import DataError, ImageData, Split, load_digits, load_images, rank_batches
from images.demo import DEMO_METHODS, print_table
from images.methods import METHODS, build_compression
from images.model import SmallConvNet
from images.progress import output_is_terminal, track
from images.report import EpochReport, describe_choices, write_json
from images.timing import StepMeter
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

import hvd_compress.torch as hvd
from hvd_compress.errors import ConfigError, UnsupportedError

WARM_UP = 0.1  # share of all steps in which the learning rate rises
TEST_BATCH = 500
BATCH_SIZES = {"Fashion-MNIST": 64, "digits": 16}


@dataclass(frozen=True)
class Settings:
    """What a run is made of. `batch_size` is that of one rank."""

    batch_size: int
    epochs: int = 5
    compression: str = "star"
    ratio: float | None = None
    algorithm: str | None = None
    engine: str | None = None
    device: str = "cpu"
    lr: float = 0.02
    seed: int = 1


def train(data: ImageData, settings: Settings) -> list[EpochReport]:
    """Train a new model; every rank works on its own share of the images."""
    compression = build_compression(
        settings.compression, ratio=settings.ratio, algorithm=settings.algorithm, engine=settings.engine
    )
    torch.manual_seed(settings.seed)
    model = SmallConvNet().to(settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    epochs = [shuffled_batches(data.train, settings, epoch) for epoch in range(settings.epochs)]
    schedule = LambdaLR(optimizer, partial(lr_factor, steps=sum(map(len, epochs))))
    reports = []
    for number, batches in enumerate(epochs, start=1):
        label = f"{settings.compression}, epoch {number}/{settings.epochs}"
        meter = StepMeter(count_values(model), METHODS[settings.compression].value_bytes, hvd.size())
        start = time.perf_counter()
        shown = track(batches, label, show=hvd.rank() == 0)
        images = (tuple(part.to(settings.device) for part in data.train.batch(indices)) for indices in shown)
        loss = train_epoch(model, optimizer, schedule, images, meter)
        epoch_s = time.perf_counter() - start
        step = mean_over_ranks({"loss": loss, **meter.means()})
        reports.append(EpochReport(number, step.pop("loss"), evaluate(model, data.test), epoch_s, step))
        say(f"{label}: {reports[-1].text()}")
    if settings.compression == "auto" or getattr(optimizer, "controller", None) is not None:
        say(describe_choices(optimizer.decisions))
    return reports


def train_epoch(
    model: nn.Module,
    optimizer: Any,
    schedule: LambdaLR,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    meter: StepMeter,
) -> float:
    """Take one step a batch and return the mean loss.

    Without the stop-watch, synchronize() and skip_synchronize() are not needed: optimizer.step() does both.
    """
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        with meter.phase("forward_s"):
            loss = functional.cross_entropy(model(images), labels)
        with meter.phase("backward_s"):
            loss.backward()
        with meter.phase("wait_s"):
            optimizer.synchronize()
        with meter.phase("update_s"), optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
        meter.end_step(getattr(optimizer, "last_step", None))
        losses.append(loss.item())
    return math.fsum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: nn.Module, test: Split) -> float:
    """Return the accuracy on the whole test set, of which each rank looks at its share."""
    correct = 0
    for indices in torch.arange(hvd.rank(), len(test), hvd.size()).split(TEST_BATCH):
        images, labels = (part.to(next(model.parameters()).device) for part in test.batch(indices))
        correct += int((model(images).argmax(dim=1) == labels).sum())
    return hvd.allreduce(torch.tensor(correct), name="correct", op=hvd.Sum).item() / len(test)


def shuffled_batches(split: Split, settings: Settings, epoch: int) -> tuple[torch.Tensor, ...]:
    """Return this rank's batches of an epoch, as indices."""
    return rank_batches(
        len(split), settings.batch_size, rank=hvd.rank(), world_size=hvd.size(), seed=settings.seed, epoch=epoch
    )


def lr_factor(step: int, steps: int) -> float:
    """Rise in a straight line during the warm-up, then fall to zero along half a cosine."""
    warm_up = math.ceil(WARM_UP * steps)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def mean_over_ranks(figures: dict[str, float]) -> dict[str, float]:
    """Average each figure over the ranks."""
    values = torch.tensor(list(figures.values()), dtype=torch.float64)
    return dict(zip(figures, hvd.allreduce(values, name="figures").tolist(), strict=True))


def count_values(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def this_device(choice: str) -> str:
    """Return where this rank trains: "auto" takes a GPU where there is one. Ranks of a machine take its GPUs in turn.

    Raises:
        click.UsageError: a GPU was asked for, and torch sees none.
    """
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise click.UsageError("--device cuda: torch sees no GPU here; use --device cpu")
    return f"cuda:{hvd.local_rank() % torch.cuda.device_count()}"


def say(text: str) -> None:
    """Print on rank 0 only."""
    if hvd.rank() == 0:
        click.echo(text)


def share_cores() -> None:
    """Divide this machine's cores among its ranks, unless OMP_NUM_THREADS says how many threads each gets."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))


def compare(data: ImageData, settings: Settings) -> dict[str, list[EpochReport]]:
    """Train with each method of the demo in turn, and print a table."""
    # Too short to choose algorithms while it runs: it compares what is sent.
    os.environ.setdefault("HVD_COMPRESS_ADAPT", "0")
    results = {}
    for number, name in enumerate(DEMO_METHODS, start=1):
        say(f"\n{number} of {len(DEMO_METHODS)}: {METHODS[name].label}")
        results[name] = train(data, replace(settings, compression=name))
    if hvd.rank() == 0:
        print_table(results, hvd.size(), terminal=output_is_terminal())
    return results


def introduce(data: ImageData, device: str) -> None:
    """Say what is trained on what, and by how many."""
    say(f"{data.name} from {data.origin}: {len(data.train)} images for training, {len(data.test)} for testing")
    where = "" if device == "cpu" else f", which train on {torch.cuda.device_count()} GPU(s) a machine"
    say(f"a convolutional net of {count_values(SmallConvNet()):,} parameters on {hvd.size()} rank(s){where}")
    if hvd.size() == 1:
        launch = "mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python"
        say(f"nothing is communicated by one rank; for four: {launch} {' '.join(sys.argv)}")


@click.command(help=__doc__)
@click.option("--compression", type=click.Choice(list(METHODS)), help="How gradients travel. [default: star]")
@click.option("--ratio", type=float, help="Share of the values that top-k sends, in (0, 1]. [default: 0.01, or chosen]")
@click.option(
    "--algorithm",
    help="Of the allreduce: ring, tree, recursive_doubling, rabenseifner; of topk's all-gather: ring, bruck; or auto.",
)
@click.option("--engine", help="What moves the bytes: auto, mpi, horovod.")
@click.option("--epochs", type=click.IntRange(min=1), help="[default: 5]")
@click.option("--batch-size", type=click.IntRange(min=1), help="Of one rank. [default: 64, with the digits 16]")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="Peak of the learning rate. [default: 0.02]")
@click.option("--seed", type=click.IntRange(min=0), help="Of the initial weights and the order of images. [default: 1]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder with the four idx files of Fashion-MNIST.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write settings and results to this file.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where the net is trained.")
@click.option("--demo", is_flag=True, help="Compare several methods on the digits that scikit-learn brings.")
def main(demo: bool, data_dir: Path | None, json_file: Path | None, device: str, **options: Any) -> None:
    chosen = {name: value for name, value in options.items() if value is not None}
    if demo and (data_dir or not chosen.keys() <= {"epochs", "batch_size", "lr", "seed"}):
        raise click.UsageError("--demo chooses data and methods; only epochs, batch size, lr and seed can be set")
    hvd.init()
    share_cores()
    try:
        data = load_digits() if demo else load_images(data_dir)
        settings = Settings(**{"batch_size": BATCH_SIZES[data.name], "device": this_device(device), **chosen})
        introduce(data, settings.device)
        results = compare(data, settings) if demo else {settings.compression: train(data, settings)}
    except (DataError, ConfigError, UnsupportedError) as error:  # the message says what to change
        refusal = click.ClickException(f"rank {hvd.rank()}: {error}")
        refusal.exit_code = 2  # as of the command line's own
        raise refusal from error
    if json_file is not None and hvd.rank() == 0:
        facts = {
            "data": data.name,
            "origin": data.origin,
            "train_images": len(data.train),
            "world_size": hvd.size(),
            "parameters": count_values(SmallConvNet()),
        }
        write_json(json_file, {**facts, "settings": asdict(settings)}, results)


if __name__ == "__main__":
    main()
