"""The demo: which methods it compares, and the table that it ends with."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from images.methods import METHODS
from images.report import EpochReport, mean_of

DEMO_METHODS = ("dense", "auto", "int4", "topk", "star", "efsign")


def print_table(results: Mapping[str, list[EpochReport]], world_size: int, *, terminal: bool) -> None:
    """Print what became of each method, and how to read it."""
    table = Table(title=f"{world_size} rank{'s' * (world_size > 1)}, same seed, same images, same epochs")
    table.add_column("method")
    for heading in ("accuracy", "MB a step", "of dense", "step time"):
        table.add_column(heading, justify="right")
    for name, reports in results.items():
        table.add_row(*_row(name, reports))
    console = Console(width=80, force_terminal=terminal)
    console.print(table)
    console.print(_reading(results, world_size))


def _row(name: str, reports: list[EpochReport]) -> tuple[str, ...]:
    sent, dense, step_s = (mean_of(reports, figure) for figure in ("sent_bytes", "dense_bytes", "step_s"))
    share = f"{sent / dense:.1%}" if dense else "-"
    return METHODS[name].label, f"{reports[-1].accuracy:.1%}", f"{sent / 1e6:.3f}", share, f"{step_s * 1e3:.1f} ms"


def _reading(results: Mapping[str, list[EpochReport]], world_size: int) -> str:
    """Say in plain words what the table shows."""
    if world_size == 1:
        return "One rank sends nothing; its gradients are compressed all the same, which is what the step times show."
    fastest = min(results, key=lambda name: mean_of(results[name], "step_s"))
    return (
        "Bytes are what a rank sends in a step; step time is a mean over ranks and over the epochs after the first. "
        f"Fastest here: {METHODS[fastest].label}. But these ranks share one machine, where bytes travel through "
        "memory: there dense may well be the fastest, since compression takes time and saves little. "
        "It pays where a network is slow enough that the bytes saved outweigh that time."
    )
