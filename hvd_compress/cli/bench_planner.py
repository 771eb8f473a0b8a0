"""hvd-compress bench planner: what planning takes, beside the times of Espresso's paper."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
import rich.box
from rich.console import Console
from rich.table import Table

from hvd_compress.bench.machine import machine
from hvd_compress.bench.planner import TIMELINE_BOUND_S, Figure, measure, setup_s
from hvd_compress.bench.testbeds import TESTBEDS, WORK, compressor, system
from hvd_compress.errors import ConfigError
from hvd_compress.planner.profiles import ModelProfile, read

WHERE_TRACES_ARE = (
    "give a folder of them with --traces FOLDER: profiles of models as JSON (docs/planner.md), of your own models, or "
    "with the numbers of the traces in Espresso's artifact, github.com/zhuangwang93/Espresso"
)
WIDTH = 120


@click.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with profiles of models, as JSON.",
)
@click.option("--compressor", "name", type=click.Choice(list(WORK)), default="dgc", show_default=True)
@click.option("--testbed", type=click.Choice(list(TESTBEDS)), default="nvlink-100g", show_default=True)
@click.option("--gpus", type=click.IntRange(min=1), default=64, show_default=True, help="8 a host.")
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True, help="Medians of so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def planner(traces: Path | None, name: str, testbed: str, gpus: int, rounds: int, as_json: bool) -> None:
    """Time planning on one core, beside Tables 5 and 6 of Espresso's paper.

    Selection is Algorithm 1 with the options of one device, 174 of them; offloading is Algorithm 2, which moves
    compression to the CPU. A timeline is F of one strategy. Set-up makes the prices of all 4341 options; the first one
    of a process makes the options, too. Compressors and networks are the paper's, by numbers in
    hvd_compress/bench/testbeds.py. ! marks what misses its bound: a fifth of the paper's selection (of LSTM half), the
    paper's offloading, 20 us for the timeline of 314 tensors.
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
    click.echo(f"{facts['machine']}, 1 core")
    title = (
        f"{facts['compressor']}, {facts['testbed']}, {facts['gpus']} GPUs; medians of {facts['rounds']}; times in ms, "
        "of a timeline in us"
    )
    table = Table(title=title, box=rich.box.MARKDOWN, title_justify="left", padding=0)
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for figure in figures:
        table.add_row(*_cells(figure))
    Console(width=WIDTH).print(table)
    click.echo(
        "ratio: of the paper's time, Python on another machine. timeline: of Espresso's choice, and the longest."
    )
    click.echo(f"First set-up of a process, with the tree of options: {1e3 * facts['first_setup_s']:.0f} ms")


_TIMES = ("quartiles", "paper", "ratio")
_HEADINGS = ("model", "tensors", "set-up", "selection", *_TIMES, "offloading", *_TIMES, "timeline", "longest")


def _cells(figure: Figure) -> list[str]:
    selection, offloading, bound = None, None, None
    if figure.paper is not None:
        selection, offloading = figure.paper.selection_s, figure.paper.offloading_s
        bound = figure.paper.selection_bound_s
    return [
        *(figure.model, str(figure.tensors), f"{1e3 * figure.setup_s:.0f}"),
        *_beside(figure.selection_s, figure.selection_quartiles_s, selection, bound),
        *_beside(figure.offloading_s, figure.offloading_quartiles_s, offloading, offloading),
        *(_timeline(figure.timeline_s, figure.tensors), _timeline(figure.longest_timeline_s, figure.tensors)),
    ]


def _beside(seconds: float, quartiles: tuple[float, float], paper_s: float | None, bound_s: float | None) -> list[str]:
    missed = bound_s is not None and seconds > bound_s
    spread = "{:.2f}-{:.2f}".format(*(1e3 * quartile for quartile in quartiles))
    cells = [f"{1e3 * seconds:.2f}{' !' if missed else ''}", spread]
    return cells + (["", ""] if paper_s is None else [f"{1e3 * paper_s:.0f}", f"{seconds / paper_s:.3f}"])


def _timeline(seconds: float, tensors: int) -> str:
    missed = tensors <= 314 and seconds > TIMELINE_BOUND_S
    return f"{1e6 * seconds:.1f}{' !' if missed else ''}"
