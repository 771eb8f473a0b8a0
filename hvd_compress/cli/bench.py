"""hvd-compress bench: measurements of this machine."""

from __future__ import annotations

import dataclasses
import json
import pickle
import platform
import sys
from pathlib import Path

import click
import rich.box
import torch
from rich.console import Console
from rich.table import Table

from hvd_compress import native
from hvd_compress.bench.kernels import REFERENCE_NUMEL, Figure, gradients, measure

SIZES = (65_536, 1_048_576, REFERENCE_NUMEL, 100_000_000)


@click.group()
def command() -> None:
    """Measure what this machine does."""


@command.command()
@click.option("--size", "sizes", multiple=True, type=click.IntRange(min=1), help="Elements; may be repeated.")
@click.option("--threads", "thread_counts", multiple=True, type=click.IntRange(min=1), help="May be repeated.")
@click.option("--data", "kinds", multiple=True, type=click.Choice(["normal", "laplace"]), help="May be repeated.")
@click.option(
    "--gradients",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tensor from torch.save.",
)
@click.option(
    "--repetitions",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    help="Medians of so many; torch gets 1 or 3.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def kernels(
    sizes: tuple[int, ...],
    thread_counts: tuple[int, ...],
    kinds: tuple[str, ...],
    file: Path | None,
    repetitions: int,
    as_json: bool,
) -> None:
    """Time the kernels beside their floor and beside torch, all in one run.

    The floor is torch.add(residual, grad, out=residual) on the same buffers with the same threads, in turns with the
    kernel. With several threads there is a pause of 10 ms before each call, in which those of torch stop to spin: right
    behind one of torch's operators kernels have fewer cores, and take up to half as long again. With --gradients, that
    tensor is repeated to each size. Without options, this takes about 12 minutes and 5 GB.
    """
    if file and kinds:
        raise click.UsageError("--gradients takes the place of --data: give one of them")
    figures: list[Figure] = []
    if not as_json:
        click.echo(f"{_machine()}; medians of {repetitions}; times in ms, ! marks what misses its bound")
    for size in sizes or SIZES:
        for kind in ("saved",) if file else kinds or ("normal", "laplace"):
            grad = _saved(file, size) if file else gradients(kind, size)
            for threads in thread_counts or (1, 2):
                found = []
                for figure in measure(grad, kind, threads, repetitions, peer_repetitions=3 if size < 10**7 else 1):
                    found.append(figure)
                    if sys.stderr.isatty():
                        click.echo(f"\r\x1b[K{size} {kind} {threads}: {figure.kernel}", err=True, nl=False)
                figures += found
                if not as_json:
                    _print(found)
    if as_json:
        rows = [
            dataclasses.asdict(figure) | {"times_floor": figure.times_floor, "times_faster": figure.times_faster}
            for figure in figures
        ]
        click.echo(json.dumps({"machine": _machine(), "figures": rows}, indent=1))


def _saved(file: Path, size: int) -> torch.Tensor:
    try:
        saved = torch.load(file, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        raise click.BadParameter(f"{file} was not made by torch.save: {error}".splitlines()[0]) from error
    usable = isinstance(saved, torch.Tensor) and saved.layout is torch.strided and saved.numel() > 0
    if not usable or not saved.is_floating_point() or not bool(saved.isfinite().all()):
        raise click.BadParameter(f"{file} must hold one dense tensor of finite numbers")
    flat: torch.Tensor = saved.detach().reshape(-1).float()
    return flat.repeat(-(-size // flat.numel()))[:size].contiguous()


def _machine() -> str:
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return f"{model}, {native.simd_levels()[-1]}, torch {torch.__version__}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _print(figures: list[Figure]) -> None:
    first = figures[0]
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    table = Table(
        title=f"{first.numel:,} elements, {first.data}, {threads}",
        box=rich.box.MARKDOWN,
        title_justify="left",
    )
    for heading in ("kernel", "ratio", "ms", "floor", "x floor", "bound", "x torch"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for figure in figures:
        table.add_row(
            figure.kernel,
            "" if figure.ratio is None else f"{figure.ratio:g}",
            f"{1e3 * figure.seconds:.2f}",
            f"{1e3 * figure.floor_s:.2f}",
            f"{figure.times_floor:.2f}",
            "" if figure.bound is None else f"{figure.bound:.1f}{'' if figure.times_floor <= figure.bound else ' !'}",
            f"{figure.times_faster:.1f}",
        )
    Console(width=79).print(table)
