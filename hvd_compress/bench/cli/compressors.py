"""hvd-compress bench compressors: what each compression costs and keeps, beside torch's hooks."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import rich.box
import torch
from rich.console import Console
from rich.table import Table

from hvd_compress import native
from hvd_compress.bench.compressors import Figure, measure
from hvd_compress.bench.hooks import measure_hooks
from hvd_compress.bench.inputs import SHAPES, Gradients, read_gradient, read_shapes, read_trace, synthetic
from hvd_compress.buckets.layout import Layout
from hvd_compress.cli.numbers import ROUNDS, THREADS
from hvd_compress.compression.named import NEEDED, compressor_named, each_of, names, request_of
from hvd_compress.compressors import Compressor
from hvd_compress.measuring import fixed_threads, machine

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
ABOVE_TAU = 0.01
"""The share of the first gradient that reaches the threshold of `threshold`, whose tau has no default."""
WIDTH = 120


@click.command("compressors", short_help="Time compressions on one bucket, and what they keep of it.")
@click.option("--gradient", type=FILE, help="A tensor, or a dict of them by name, from torch.save; or a .npy file.")
@click.option("--trace", type=FILE, help='Tensor sizes: JSON with "tensors", each with "name" and "numel".')
@click.option("--shapes", metavar="SHAPES", help="Such as 1024x1024,1000. By default the last layers of ResNet-50.")
@click.option("--compressions", metavar="NAMES", help="Only these, with commas between: names of "
              "`hvd-compress list` or of a plan, and settings: int4,topk:ratio=0.05.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(1, 64), default=4, show_default=True, help="How many are simulated.")
@click.option("--rounds", type=ROUNDS, default=5, show_default=True, help="Steps that count.")
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Of torch and the kernels.")
@click.option(
    "--noise",
    type=click.FloatRange(0.0, 1e6),
    default=1.0,
    show_default=True,
    help="What is added for each rank and step, in units of the root mean square of a parameter's gradient.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of noise and made values.")
@click.option("--peers/--no-peers", default=True, help="Whether torch's hooks are measured, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    gradient: Path | None,
    trace: Path | None,
    shapes: str | None,
    compressions: str | None,
    ranks: int,
    rounds: int,
    threads: int,
    noise: float,
    seed: int,
    peers: bool,
    as_json: bool,
) -> None:
    """Measure compressions on one bucket: time, bytes, and how much of the gradient they keep.

    All ranks are simulated in one thread, without an engine. Encoding is that of rank 0 with error feedback; decoding
    that of all ranks' payloads, or of their sum where an allreduce carries it. What packs payloads, and what moves
    them, is not timed. Times are medians beside their floor, torch.add(residual, gradient, out=residual), in turns
    with the steps. torch's hooks for DistributedDataParallel run in the same process with one rank over Gloo, on an
    object with GradBucket's methods; encoding, decoding, and one rank's collectives are one time.

    Each rank's gradient of each step is the one given, or made from the seed, and noise. Values that are made have
    heavy tails but no structure: gain and cosine say something of your training for a saved gradient alone.

    The exit code is 1 where a compression failed; its row says why.
    """
    chosen = _chosen(compressions)
    layout, values = _input(gradient, trace, shapes, seed)
    gradients = Gradients.of(layout, values, noise, seed)
    click.echo(
        f"{len(chosen)} compressions, {layout.numel:,} elements in {len(layout.names)} tensors, {ranks} ranks, "
        f"{rounds} rounds; about {_memory_bytes(layout.numel, ranks) / 1e9:.1f} GB of memory",
        err=True,
    )
    with fixed_threads(threads):
        figures = list(_figures(chosen, gradients, ranks, rounds, peers))
    _progress("")
    facts = {
        **{"machine": machine(), "torch": torch.__version__, "threads": threads, "ranks": ranks, "rounds": rounds},
        **{"numel": layout.numel, "tensors": len(layout.names), "noise": noise, "seed": seed},
        "input": str(gradient or trace or shapes or "the last layers of ResNet-50"),
    }
    if as_json:
        click.echo(json.dumps({**facts, "figures": [_row(figure) for figure in figures]}, indent=1))
    else:
        _print(figures, facts)
    if any(figure.failure for figure in figures if figure.name in chosen):
        sys.exit(1)


def _chosen(compressions: str | None) -> list[str]:
    """Return the names to measure, those with settings as they were written. Raises ConfigError for what is none."""
    if compressions is None:
        return names()
    asked = list(dict.fromkeys(each_of(compressions)))
    for text in asked:
        _compressor(text, NEEDED["tau"])
    return asked


def _compressor(text: str, tau: float) -> Compressor:
    """`tau`: of `threshold` by itself."""
    return request_of(text, {**NEEDED, "tau": tau}).compressor if text in names() else compressor_named(text)


def _input(gradient: Path | None, trace: Path | None, shapes: str | None, seed: int) -> tuple[Layout, torch.Tensor]:
    if sum(given is not None for given in (gradient, trace, shapes)) > 1:
        raise click.UsageError("give one of --gradient, --trace and --shapes")
    if gradient is not None:
        layout, values = read_gradient(gradient)
        _check_numel(layout.numel)
        return layout, values
    named = read_trace(trace) if trace is not None else SHAPES if shapes is None else read_shapes(shapes)
    _check_numel(sum(math.prod(shape) for shape in named.values()))
    return synthetic(named, seed)


def _check_numel(numel: int) -> None:
    if numel > native.MAX_NUMEL:
        raise click.UsageError(f"{numel:,} elements are more than {native.MAX_NUMEL:,}, the most of a bucket")


def _memory_bytes(numel: int, ranks: int) -> int:
    """About: a rank's gradient, two residuals and a compressor's own state; what all share, and scratch."""
    return 4 * numel * (4 * ranks + 10)


def _figures(chosen: list[str], gradients: Gradients, ranks: int, rounds: int, peers: bool) -> Iterator[Figure]:
    """Yield the figures, and say on a terminal what is measured."""
    k = max(1, round(ABOVE_TAU * gradients.layout.numel))
    tau = float(native.topk(gradients.common, k)[1].abs().min()) or NEEDED["tau"]
    for number, name in enumerate(chosen, 1):
        _progress(f"{number}/{len(chosen)} {name}")
        yield measure(name, _compressor(name, tau), gradients, ranks, rounds)
    if peers:
        yield from measure_hooks(gradients, rounds, lambda name: _progress(f"torch's {name} hook"))


def _progress(words: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{words}", err=True, nl=False)


def _row(figure: Figure) -> dict[str, Any]:
    if figure.failure:
        return {"name": figure.name, "kind": figure.kind, "settings": figure.settings, "failure": figure.failure}
    derived = {
        "bits": figure.bits,
        "encode_times_floor": figure.times_floor(figure.encode_s),
        "decode_times_floor": figure.times_floor(figure.decode_s),
        "both_times_floor": figure.times_floor(figure.both_s),
    }
    return dataclasses.asdict(figure) | derived


COLUMNS: tuple[tuple[str, Callable[[Figure], str]], ...] = (
    ("compression", lambda figure: figure.name),
    ("kind", lambda figure: figure.kind),
    ("bytes", lambda figure: f"{figure.sent_bytes:,.0f}"),
    ("bits", lambda figure: f"{figure.bits:.3g}"),
    ("encode", lambda figure: _ms(figure.encode_s)),
    ("x", lambda figure: _times(figure.times_floor(figure.encode_s))),
    ("decode", lambda figure: _ms(figure.decode_s)),
    ("x", lambda figure: _times(figure.times_floor(figure.decode_s))),
    ("both", lambda figure: _ms(figure.both_s)),
    ("x", lambda figure: _times(figure.times_floor(figure.both_s))),
    ("gain", lambda figure: f"{figure.gain:.3f}"),
    ("lost", lambda figure: f"{figure.lost:.3f}"),
    ("cosine", lambda figure: f"{figure.cosine:.3f}"),
)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def _times(multiple: float | None) -> str:
    return "" if multiple is None else f"{multiple:.1f}"


def _print(figures: list[Figure], facts: dict[str, Any]) -> None:
    """Print a table, grouped by kind in the order of the first of each, and what failed below it."""
    click.echo(f"{facts['machine']}, {facts['threads']} thread{'' if facts['threads'] == 1 else 's'}")
    title = (
        f"{facts['numel']:,} elements, {facts['ranks']} ranks, medians of {facts['rounds']}; times in ms, and x floor"
    )
    table = Table(title=title, box=rich.box.MARKDOWN, title_justify="left", padding=0)
    for number, (heading, _) in enumerate(COLUMNS):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    kinds = list(dict.fromkeys(figure.kind for figure in figures))
    for figure in sorted(figures, key=lambda figure: kinds.index(figure.kind)):
        if figure.failure:
            table.add_row(figure.name, figure.kind, "failed")
        else:
            table.add_row(*(cell(figure) for _, cell in COLUMNS))
    Console(width=WIDTH).print(table)
    for figure in figures:
        if figure.failure:
            click.echo(f"{figure.name} failed: {figure.failure}")
    click.echo(f"floor: {_floor(figures)}. gain, lost: squared norm sent, not sent, over that of corrected.")
    click.echo("torch hooks: one rank, encoding and decoding in one call.")


def _floor(figures: list[Figure]) -> str:
    floors = [1e3 * figure.floor_s for figure in figures if not figure.failure]
    return f"{min(floors):.2f} to {max(floors):.2f} ms" if floors else "not measured"
