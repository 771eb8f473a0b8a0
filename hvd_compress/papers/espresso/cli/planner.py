"""hvd-compress bench planner: what planning takes, beside the times of Espresso's paper."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.numbers import RANKS, ROUNDS
from hvd_compress.cli.suggesting import Choice
from hvd_compress.errors import ConfigError
from hvd_compress.measuring import machine
from hvd_compress.papers.espresso.bench.searches import TIMELINE_BOUND_S, Figure, measure, setup_s
from hvd_compress.papers.espresso.bench.testbeds import TESTBEDS, WORK, compressor, system
from hvd_compress.profiler.profiles import ModelProfile, read

WHERE_TRACES_ARE = (
    "give a folder of them with --traces FOLDER: profiles of models as JSON (docs/planner.md), of your own models, or "
    "with the numbers of the traces in Espresso's artifact, github.com/zhuangwang93/Espresso"
)
TENSORS = 314
"""The bound of a timeline is for models of up to this number of tensors."""


@click.command(short_help="Time the planner, next to the times of Espresso's paper.")
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with profiles of models, as JSON.",
)
@click.option("--compressor", "name", type=Choice(list(WORK)), default="dgc", show_default=True)
@click.option("--testbed", type=Choice(list(TESTBEDS)), default="nvlink-100g", show_default=True)
@click.option("--gpus", type=RANKS, default=64, show_default=True, help="8 a host.")
@click.option("--rounds", type=ROUNDS, default=9, show_default=True, help="Medians are of this number.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(traces: Path | None, name: str, testbed: str, gpus: int, rounds: int, as_json: bool) -> None:
    """Time planning on one core, beside Tables 5 and 6 of Espresso's paper.

    Selection is Algorithm 1 with the options of one device, 174 of them; offloading is Algorithm 2, which moves
    compression to the CPU. A timeline is F of one strategy. Set-up makes the prices of all 4341 options; the first one
    of a process makes the options, too. Compressors and networks are the paper's, by numbers in
    hvd_compress/papers/espresso/bench/testbeds.py. Bounds are a fifth of the paper's selection (of LSTM half), the
    paper's offloading, and 20 us for the timeline of up to 314 tensors; what exceeds one is named below the tables.
    """
    models = _models(traces)
    bed, compression = system(testbed, gpus), compressor(name)
    first_s = setup_s(models[0], bed, compression)
    figures = []
    for model in models:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{model.model}", err=True, nl=False)
        figures.append(measure(model, bed, compression, rounds))
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    facts = {
        **{"machine": machine(), "compressor": name, "testbed": testbed, "gpus": gpus, "rounds": rounds},
        "first_setup_s": first_s,
    }
    if as_json:
        click.echo(json.dumps({**facts, "figures": [_row(figure) for figure in figures]}, indent=1))
    else:
        _print(figures, facts)


def _models(traces: Path | None) -> list[ModelProfile]:
    """Return the models of a folder, by the number of tensors."""
    files = [] if traces is None else sorted(traces.glob("*.json"))
    if not files:
        raise ConfigError(f"no traces{f' in {traces}' if traces else ''}: {WHERE_TRACES_ARE}")
    return sorted((read(file, ModelProfile) for file in files), key=lambda model: len(model.tensors))


def _row(figure: Figure) -> dict[str, Any]:
    return {**dataclasses.asdict(figure), "paper": figure.paper and dataclasses.asdict(figure.paper)}


def _print(figures: list[Figure], facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(
        Text(
            f"{facts['machine']}, 1 core; {facts['compressor']}, {facts['testbed']}, {facts['gpus']} GPUs; medians of "
            f"{facts['rounds']}, their quartiles, and the ratio to the paper's time (Python on another machine)"
        )
    )
    console.print(
        _table("selection (Algorithm 1), ms", figures, _selection),
        _table("offloading (Algorithm 2), ms", figures, _offloading),
    )
    console.print(
        _table("set-up and timelines", figures, _others, ("set-up\nms", "timeline\nus", "longest timeline\nus"))
    )
    missed = [words for figure in figures for words in _missed(figure)]
    for words in missed or ["all times are within their bounds"]:
        console.print(Text(words))
    console.print(Text(f"first set-up of a process, with the tree of options: {1e3 * facts['first_setup_s']:.0f} ms"))


def _table(
    title: str,
    figures: list[Figure],
    cells: Callable[[Figure], Sequence[str]],
    headings: Sequence[str] = ("median", "quartiles", "paper", "ratio", "bound"),
) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, collapse_padding=True)
    for number, heading in enumerate(("model", "tensors", *headings)):
        table.add_column(heading, justify="right" if number else "left", no_wrap=bool(number))
    for figure in figures:
        table.add_row(Text(figure.model), str(figure.tensors), *cells(figure))
    return table


def _selection(figure: Figure) -> Sequence[str]:
    paper_s, bound_s = (figure.paper.selection_s, figure.paper.selection_bound_s) if figure.paper else (None, None)
    return _beside(figure.selection_s, figure.selection_quartiles_s, paper_s, bound_s)


def _offloading(figure: Figure) -> Sequence[str]:
    paper_s = figure.paper.offloading_s if figure.paper else None
    return _beside(figure.offloading_s, figure.offloading_quartiles_s, paper_s, paper_s)


def _others(figure: Figure) -> Sequence[str]:
    return f"{1e3 * figure.setup_s:.0f}", f"{1e6 * figure.timeline_s:.1f}", f"{1e6 * figure.longest_timeline_s:.1f}"


def _beside(
    seconds: float, quartiles: tuple[float, float], paper_s: float | None, bound_s: float | None
) -> Sequence[str]:
    cells = f"{1e3 * seconds:.2f}", "{:.2f}-{:.2f}".format(*(1e3 * quartile for quartile in quartiles))
    if paper_s is None or bound_s is None:
        return *cells, "", "", ""
    return *cells, f"{1e3 * paper_s:.0f}", f"{seconds / paper_s:.3f}", f"{1e3 * bound_s:.3g}"


def _missed(figure: Figure) -> Iterator[str]:
    """Say which times exceed their bounds."""
    if figure.paper is not None:
        yield from _above(figure, "selection", figure.selection_s, figure.paper.selection_bound_s)
        yield from _above(figure, "offloading", figure.offloading_s, figure.paper.offloading_s)
    if figure.tensors <= TENSORS:
        yield from _above(figure, "the timeline", figure.timeline_s, TIMELINE_BOUND_S)
        yield from _above(figure, "the longest timeline", figure.longest_timeline_s, TIMELINE_BOUND_S)


def _above(figure: Figure, what: str, seconds: float, bound_s: float) -> Iterator[str]:
    if seconds > bound_s:
        unit, times = ("us", 1e6) if bound_s < 1e-4 else ("ms", 1e3)
        bound = f"its bound of {times * bound_s:.3g} {unit}"
        yield f"{figure.model}: {what} takes {times * seconds:.3g} {unit}, above {bound}"
