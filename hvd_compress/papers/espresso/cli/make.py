"""`hvd-compress plan make`: a plan from a profile, and why it is so."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hvd_compress.cli.outputs import PICTURES, require_outputs, require_picture
from hvd_compress.cli.suggesting import Choice
from hvd_compress.compression.named import compressor_named
from hvd_compress.engines.names import EngineName
from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso import chrome_trace
from hvd_compress.papers.espresso.boxes import step_boxes
from hvd_compress.papers.espresso.cli.pruning import constrained, constraints_of
from hvd_compress.papers.espresso.cli.report import report
from hvd_compress.papers.espresso.cli.seconds import Seconds
from hvd_compress.papers.espresso.making import NAMES, Inputs, make
from hvd_compress.papers.espresso.running import ENGINES
from hvd_compress.papers.espresso.timeline.drawing import PICTURE, Panel, draw
from hvd_compress.papers.espresso.writing import to_plan

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("make", short_help="Make a plan from a profile; draw the step that it predicts.")
@click.argument("profile", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", type=FILE, help="In the place of PROFILE/model.json.")
@click.option("--system", type=FILE, help="In the place of PROFILE/system.json.")
@click.option("--compressor", type=FILE, help="In the place of PROFILE/compressor.json.")
@click.option("-o", "--out", required=True, type=FILE, help="The plan, for Compression.plan().")
@click.option("--budget", type=Seconds(), default=10.0, show_default=True, help="Seconds of the search.")
@click.option("--engine", type=Choice(list(ENGINES)), help="That will run it.  [default: the profile's, or mpi]")
@click.option("--fusion/--no-fusion", default=True, help="Whether tensors may share a bucket.")
@click.option("--trace", type=FILE, help="Write the predicted step as a Chrome trace, for Perfetto.")
@click.option("--picture", type=FILE, help=f"Draw the predicted step, as PNG, SVG or PDF. {PICTURES}")
@constrained
def command(
    profile: Path | None,
    model: Path | None,
    system: Path | None,
    compressor: Path | None,
    out: Path,
    budget: float,
    engine: EngineName | None,
    fusion: bool,
    trace: Path | None,
    picture: Path | None,
    **asked: Any,
) -> None:
    """Make a plan from PROFILE, a directory with model.json, system.json and compressor.json.

    It takes the options of the planner's tree that can be run with this compressor over this engine, and by prediction
    is never slower than the best plan without compression.
    """
    _require_no_name(compressor)
    files = files_of(profile, {"model": model, "system": system, "compressor": compressor})
    require_outputs({"--out": out, "--trace": trace, "--picture": picture}, files.values())
    if picture is not None:
        require_picture(picture, PICTURE)
    inputs = Inputs.read(files)
    began = time.monotonic()
    made = make(inputs, constraints_of(**asked), engine=engine, fusion=fusion, budget_s=budget)
    seconds = time.monotonic() - began
    to_plan(made, inputs).write(out)
    report(made, inputs, seconds, budget)
    found = step_boxes(made.planned.problem, made.planned.chosen.strategy)
    title = f"{inputs.model.model}, predicted"
    if trace is not None:
        chrome_trace.write(trace, found, title)
    if picture is not None:
        draw([Panel(title, found, round(1e3 * made.step_us), "predicted step")], picture)
    for written in (out, trace, picture):
        if written is not None:
            click.echo(f"wrote {written}")


def _require_no_name(compressor: Path | None) -> None:
    """Raise UsageError where a compressor is named in the place of a file."""
    if compressor is None or os.path.exists(compressor):
        return
    with suppress(ConfigError):
        compressor_named(str(compressor))
        raise click.UsageError(
            f"--compressor is a file of measured times: `hvd-compress profile --compressor {compressor} -- COMMAND` "
            "writes one"
        )


def files_of(profile: Path | None, given: dict[str, Path | None]) -> dict[str, Path]:
    """Return the three files of a profile: those that were given by themselves, and else those of its directory."""
    missing = [name for name, file in given.items() if file is None]
    if missing and profile is None:
        raise click.UsageError(f"give the directory of a profile, or --{' and --'.join(missing)}")
    return {name: file or _within(profile) / NAMES[name] for name, file in given.items()}


def _within(profile: Path | None) -> Path:
    assert profile is not None
    return profile
