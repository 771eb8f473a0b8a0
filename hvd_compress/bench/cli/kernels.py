"""`hvd-compress bench kernels`: what the kernels take on this machine."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click
import rich.box
import torch
from rich.console import Console
from rich.table import Table

from hvd_compress import native
from hvd_compress.bench.cases import kernel_names
from hvd_compress.bench.inputs import read_tensor
from hvd_compress.bench.kernels import REFERENCE_NUMEL, Figure, estimated_s, gradients, measure
from hvd_compress.cli.numbers import ROUNDS, THREADS, elements
from hvd_compress.cli.suggesting import Choice
from hvd_compress.errors import known_are
from hvd_compress.measuring import machine

SIZES = (65_536, 1_048_576, REFERENCE_NUMEL)
FULL_SIZES = (*SIZES, 100_000_000)
REPETITIONS, FULL_REPETITIONS = 5, 20


def kernel_elements(text: str) -> int:
    """Read a number of elements that the kernels take."""
    numel = elements(text)
    if numel > native.MAX_NUMEL:
        raise click.BadParameter(f"{text!r} is more than {native.MAX_NUMEL} elements, the most that a tensor may have")
    return numel


@click.command("kernels", short_help="Time the kernels beside their floor and beside torch.")
@click.option("--full", is_flag=True, help="Unless given: 64K, 1M, 25.6M and 100M elements, all data, medians of 20.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=kernel_elements,
    metavar="NUMBER",
    help="Elements, such as 25.6M; may be repeated.",
)
@click.option("--kernel", "wanted", multiple=True, help="Only these: names, with commas between, or repeated.")
@click.option("--threads", "thread_counts", multiple=True, type=THREADS, help="May be repeated.")
@click.option("--data", "kinds", multiple=True, type=Choice(["normal", "laplace"]), help="May be repeated.")
@click.option(
    "--gradients",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tensor from torch.save.",
)
@click.option("--repetitions", type=ROUNDS, help="Medians of so many, 5 by default; torch gets 1 or 3.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    full: bool,
    sizes: tuple[int, ...],
    wanted: tuple[str, ...],
    thread_counts: tuple[int, ...],
    kinds: tuple[str, ...],
    file: Path | None,
    repetitions: int | None,
    as_json: bool,
) -> None:
    """Time the kernels beside their floor and beside torch, all in one run.

    The floor is torch.add(residual, grad, out=residual) on the same buffers with the same threads, in turns with the
    kernel. With several threads there is a pause of 10 ms before each call, in which those of torch stop to spin: right
    after one of torch's operators kernels have fewer cores, and take up to half as long again. With --gradients, that
    tensor is repeated to each size. Without options, this takes about a minute and 2 GB; with --full, a quarter of an
    hour and 5 GB. HVD_COMPRESS_NUM_THREADS is not looked at: --threads says how many.
    """
    if file and kinds:
        raise click.UsageError("--gradients is instead of --data: give one of them")
    chosen, saved = _chosen(wanted), read_tensor(file) if file else None
    sizes = sizes or (FULL_SIZES if full else SIZES)
    kinds = ("saved",) if file else kinds or (("normal", "laplace") if full else ("normal",))
    thread_counts = thread_counts or (1, 2)
    repetitions = repetitions or (FULL_REPETITIONS if full else REPETITIONS)
    _announce(chosen, sizes, kinds, thread_counts, repetitions)
    figures: list[Figure] = []
    if not as_json:
        click.echo(f"{machine()}; medians of {repetitions}; times in ms, ! marks what misses its bound")
    for size in sizes:
        for kind in kinds:
            grad = gradients(kind, size) if saved is None else _repeated(saved, size)
            for threads in thread_counts:
                found = []
                for figure in measure(grad, kind, threads, repetitions, chosen):
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
        click.echo(json.dumps({"machine": machine(), "figures": rows}, indent=1))


def _chosen(wanted: tuple[str, ...]) -> list[str]:
    """Return the names of the kernels to measure: all, or those that were asked for, a family with all its variants."""
    known = kernel_names()
    asked = [name.strip() for names in wanted for name in names.split(",")]
    unknown = [name for name in asked if name not in known and name not in {one.split("/")[0] for one in known}]
    if unknown:
        raise click.BadParameter(f"no kernel is called {', '.join(unknown)}{known_are(known, unknown[0])}")
    return [name for name in known if not asked or name in asked or name.split("/")[0] in asked]


def _announce(
    chosen: list[str], sizes: tuple[int, ...], kinds: tuple[str, ...], thread_counts: tuple[int, ...], repetitions: int
) -> None:
    tables = len(sizes) * len(kinds) * len(thread_counts)
    share = len(chosen) / len(kernel_names())
    seconds = len(kinds) * len(thread_counts) * sum(estimated_s(size, repetitions, share) for size in sizes)
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    click.echo(
        f"{len(chosen)} kernels, {' and '.join(kinds)} data of {', '.join(f'{size:,}' for size in sizes)} elements, "
        f"{' and '.join(map(str, thread_counts))} threads: {tables} tables in about {time}",
        err=True,
    )


def _repeated(saved: torch.Tensor, size: int) -> torch.Tensor:
    return saved.repeat(-(-size // saved.numel()))[:size].contiguous()


def _print(figures: list[Figure]) -> None:
    first = figures[0]
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    table = Table(
        title=f"{first.numel:,} elements, {first.data}, {threads}",
        box=rich.box.MARKDOWN,
        title_justify="left",
    )
    for heading in ("kernel", "ratio", "ms", "floor", "x floor", "quartiles", "bound", "x torch"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for figure in figures:
        table.add_row(
            figure.kernel,
            "" if figure.ratio is None else f"{figure.ratio:g}",
            f"{1e3 * figure.seconds:.2f}",
            f"{1e3 * figure.floor_s:.2f}",
            f"{figure.times_floor:.2f}",
            "{:.2f}-{:.2f}".format(*figure.quartiles),
            "" if figure.bound is None else f"{figure.bound:.1f}{'' if figure.times_floor <= figure.bound else ' !'}",
            f"{figure.times_faster:.1f}",
        )
    Console(width=99).print(table)
