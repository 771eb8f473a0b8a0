"""hvd-compress bench: measurements of this machine."""

from __future__ import annotations

import dataclasses
import json
import platform
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
@click.option("--gradients", "file", type=click.Path(exists=True, path_type=Path), help="A tensor from torch.save.")
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

    The floor is torch.add(residual, grad, out=residual) on the same buffers with the same threads. With --gradients,
    that tensor is repeated to each size.
    """
    figures: list[Figure] = []
    if not as_json:
        click.echo(_machine())
    for size in sizes or SIZES:
        for kind in ("saved",) if file else kinds or ("normal", "laplace"):
            grad = _saved(file, size) if file else gradients(kind, size)
            for threads in thread_counts or (1, 2):
                found = []
                for figure in measure(grad, kind, threads, repetitions, peer_repetitions=3 if size < 10**7 else 1):
                    found.append(figure)
                    click.echo(f"  {size} {kind} {threads}: {figure.kernel}", err=True)
                figures += found
                if not as_json:
                    _print(found)
    if as_json:
        rows = [dataclasses.asdict(figure) | {"times_floor": figure.times_floor} for figure in figures]
        click.echo(json.dumps({"machine": _machine(), "figures": rows}, indent=1))


def _saved(file: Path, size: int) -> torch.Tensor:
    flat: torch.Tensor = torch.load(file, weights_only=True).reshape(-1).float()
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
    for heading in ("kernel", "ratio", "ms", "floor ms", "x floor", "at most", "x faster than torch"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for figure in figures:
        table.add_row(
            figure.kernel,
            "" if figure.ratio is None else f"{figure.ratio:g}",
            f"{1e3 * figure.seconds:.2f}",
            f"{1e3 * figure.floor_s:.2f}",
            f"{figure.times_floor:.2f}",
            "" if figure.bound is None else f"{figure.bound:.1f}",
            f"{figure.times_faster:.1f}",
        )
    Console(width=120).print(table)
