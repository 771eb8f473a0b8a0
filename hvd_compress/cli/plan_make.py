"""`hvd-compress plan make`: a plan from a profile, and why it is so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.plan_options import constrained, constraints_of
from hvd_compress.planner import chrome_trace
from hvd_compress.planner.boxes import boxes
from hvd_compress.planner.drawing import Panel, draw
from hvd_compress.planner.making import NAMES, Inputs, Made, make
from hvd_compress.planner.running import ENGINES
from hvd_compress.planner.writing import to_plan

TOP = 10
"""So many buckets are listed."""
WIDTH = 110
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("make")
@click.argument("profile", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", type=FILE, help="In the place of PROFILE/model.json.")
@click.option("--system", type=FILE, help="In the place of PROFILE/system.json.")
@click.option("--compressor", type=FILE, help="In the place of PROFILE/compressor.json.")
@click.option("-o", "--out", required=True, type=FILE, help="The plan, for Compression.plan().")
@click.option("--budget", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds of the search.")
@click.option("--engine", type=click.Choice(list(ENGINES)), default="mpi", show_default=True, help="That will run it.")
@click.option("--fusion/--no-fusion", default=True, help="Whether tensors may share a bucket.")
@click.option("--trace", type=FILE, help="Write the predicted step as a Chrome trace, for Perfetto.")
@click.option("--picture", type=FILE, help="Draw the predicted step, as PNG, SVG or PDF.")
@constrained
def make_plan(
    profile: Path | None,
    model: Path | None,
    system: Path | None,
    compressor: Path | None,
    out: Path,
    budget: float,
    engine: str,
    fusion: bool,
    trace: Path | None,
    picture: Path | None,
    **asked: Any,
) -> None:
    """Make a plan from PROFILE, a directory with model.json, system.json and compressor.json.

    It takes the options of the planner's tree that can be run with this compressor over this engine, and by prediction
    is never slower than the best plan without compression.
    """
    inputs = Inputs.read(files_of(profile, {"model": model, "system": system, "compressor": compressor}))
    began = time.monotonic()
    made = make(inputs, constraints_of(**asked), engine=engine, fusion=fusion, budget_s=budget)
    seconds = time.monotonic() - began
    to_plan(made, inputs).write(out)
    _report(made, inputs, seconds, budget)
    found = boxes(made.planned.problem, made.planned.chosen.strategy)
    title = f"{inputs.model.model}, predicted"
    if trace is not None:
        chrome_trace.write(trace, found, title)
    if picture is not None:
        draw([Panel(title, found, made.planned.end_ns)], picture)
    for written in (out, trace, picture):
        if written is not None:
            click.echo(f"wrote {written}")


def files_of(profile: Path | None, given: dict[str, Path | None]) -> dict[str, Path]:
    """Return the three files of a profile: those that were given by themselves, and else those of its directory."""
    missing = [name for name, file in given.items() if file is None]
    if missing and profile is None:
        raise click.UsageError(f"give the directory of a profile, or --{' and --'.join(missing)}")
    return {name: file or _within(profile) / NAMES[name] for name, file in given.items()}


def _within(profile: Path | None) -> Path:
    assert profile is not None
    return profile


def _report(made: Made, inputs: Inputs, seconds: float, budget: float) -> None:
    console = Console()
    console.width = max(WIDTH, console.width)
    console.print(_table(made))
    buckets, tensors = len(made.planned.fused.cuts), len(inputs.model.tensors)
    lines = [
        f"dense: {made.plain}. gain: by how much the step would be longer if this bucket alone were dense",
        f"{buckets} buckets of {tensors} tensors, {len(made.runs)} options that can be run; "
        f"found by {made.planned.chosen.by} in {seconds:.1f} of {budget:g} s",
        f"predicted step {made.step_us / 1e3:.3f} ms; without compression {made.dense_us / 1e3:.3f} ms, "
        f"{made.dense_us / made.step_us:.2f} times as long ({len(made.dense.fused.cuts)} buckets)",
    ]
    if any(tensor.shape is None for tensor in inputs.model.tensors):
        lines.append("the profile has no shapes: a job checks the names of its parameters alone")
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _table(made: Made) -> Table:
    """The buckets by which most is gained, and a row for the rest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("bucket", "parameters", "MB", "dense\nms", "planned\nms", "gain\nms", "scheme", "option"):
        words = heading in ("parameters", "scheme", "option")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    saved = [plain - planned for plain, planned in made.busy_ns]
    order = sorted(range(len(saved)), key=lambda bucket: (-made.saved_ns[bucket], -saved[bucket], bucket))
    for bucket in order[:TOP]:
        option = made.planned.options[bucket]
        tensor = made.planned.problem.model.tensors[bucket]
        times = *map(_ms, made.busy_ns[bucket]), _ms(made.saved_ns[bucket])
        row = (str(bucket), tensor.name, _mb(tensor.numel), *times, str(made.runs[option].path), str(option))
        table.add_row(*map(Text, row))  # Text, as names may contain what rich takes for markup
    if order[TOP:]:
        table.add_row(*_rest(made, order[TOP:]))
    return table


def _rest(made: Made, buckets: Sequence[int]) -> tuple[str, ...]:
    compressed = sum(made.planned.options[bucket].compressions > 0 for bucket in buckets)
    numel = sum(made.planned.problem.model.tensors[bucket].numel for bucket in buckets)
    busy = [sum(made.busy_ns[bucket][side] for bucket in buckets) for side in (0, 1)]
    words = "", f"{compressed} compressed, {len(buckets) - compressed} not"
    return ("", f"{len(buckets)} more", _mb(numel), *map(_ms, busy), "", *words)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def _mb(numel: int) -> str:
    return f"{4 * numel / 1e6:.3g}"
