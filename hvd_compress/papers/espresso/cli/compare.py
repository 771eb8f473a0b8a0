"""`hvd-compress plan compare`: a run that was traced beside what its plan predicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.outputs import PICTURES, require_outputs, require_picture
from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.boxes import step_boxes
from hvd_compress.papers.espresso.cli.advice import Row, advice
from hvd_compress.papers.espresso.cli.make import FILE, files_of
from hvd_compress.papers.espresso.making import Inputs
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.papers.espresso.timeline.boxes import TERMS, Box, seconds_by_term
from hvd_compress.papers.espresso.timeline.drawing import PICTURE, Panel, draw
from hvd_compress.papers.espresso.timeline.reading import TracedStep, chosen
from hvd_compress.papers.espresso.timeline.reading import read as read_timeline
from hvd_compress.papers.espresso.timeline.traced import traced_boxes
from hvd_compress.papers.espresso.writing import strategy_of
from hvd_compress.policies.plan_schema import Plan, read


@click.command("compare", short_help="Compare a run's timeline with what its plan predicts.")
@click.argument("plan", type=FILE)
@click.argument("timeline", type=FILE)
@click.option("--profile", type=click.Path(file_okay=False, path_type=Path), help="By default that of `plan make`.")
@click.option("--picture", type=FILE, help=f"Draw both above each other, as PNG, SVG or PDF. {PICTURES}")
@click.option("--step", type=click.IntRange(min=0), help="The step to draw; by default one as long as the median.")
def command(plan: Path, timeline: Path, profile: Path | None, picture: Path | None, step: int | None) -> None:
    """Compare a run's TIMELINE with what its PLAN predicts, term by term.

    TIMELINE is what HVD_COMPRESS_TIMELINE names in a run with Compression.plan(PLAN). Measured times are medians of the
    steps in it, without step 0. A call's time holds the waiting for the last rank, too.
    """
    found = read(plan)
    files = _files(found, plan, profile)
    require_outputs({"--picture": picture}, [plan, timeline, *files.values()])
    if picture is not None:
        require_picture(picture, PICTURE)
    try:
        inputs = Inputs.read(files)
    except PlanError as error:
        named = "" if profile else f"; {plan} names it, and --profile DIR says where the profile is now"
        raise PlanError(f"{error}{named}") from None
    try:
        problem, strategy = strategy_of(found, inputs)
    except PlanError as error:
        raise PlanError(f"{plan}: {error}") from None
    predicted = step_boxes(problem, strategy)
    steps = _steps(read_timeline(timeline), problem, timeline)
    _check_plan(steps, problem, found, timeline)
    numbers = {tensor.name: number for number, tensor in enumerate(problem.model.tensors)}
    measured = {one.number: list(traced_boxes(one, numbers)) for one in steps}
    rows = _rows(predicted, measured.values(), [one.us for one in steps])
    console = Console(highlight=False)
    console.print(_table(rows))
    for line in (*_changed(found, _end_ns(predicted), files), *advice(*rows)):
        console.print(Text(line))
    if picture is not None:
        shown = chosen(steps, step, timeline, ", or has other buckets")
        end_ns = round(1e3 * shown.us)
        title = f"{inputs.model.model}: step {shown.number} as measured"
        panels = [
            Panel(f"{inputs.model.model}: predicted", predicted, _end_ns(predicted), "step"),
            Panel(title, measured[shown.number], end_ns, "step"),
        ]
        draw(panels, picture)
        click.echo(f"wrote {picture}")


def _files(plan: Plan, path: Path, profile: Path | None) -> dict[str, Path]:
    if profile is not None or plan.prediction is None:
        if profile is None:
            raise PlanError(f"{path}: prediction is missing, and with it the files of the profile: pass --profile DIR")
        return files_of(profile, {"model": None, "system": None, "compressor": None})
    said = plan.prediction
    return {"model": Path(said.model), "system": Path(said.system), "compressor": Path(said.compressor)}


def _steps(found: Sequence[TracedStep], problem: Problem, path: Path) -> list[TracedStep]:
    """Return the steps with the plan's buckets, and others such as sparse rows, without step 0 and its handshake."""
    names = {tensor.name for tensor in problem.model.tensors}
    fitting = [step for step in found if step.number > 0 and names <= {s.bucket for s in step.spans}]
    if fitting:
        return fitting
    odd = sorted(names - {span.bucket for span in found[-1].spans})
    words = f"{odd[0]!r} is missing" if odd else "and there is no step but step 0"
    raise PlanError(
        f"{path}: no step has the {len(names)} buckets of the plan, {words}: trace a run with Compression.plan() "
        "of this file. With DistributedDataParallel, which cuts buckets of its own, plan with --no-fusion and pass "
        "bucket_cap_mb=1e-6 to it"
    )


def _check_plan(steps: Sequence[TracedStep], problem: Problem, plan: Plan, path: Path) -> None:
    """Raise PlanError where a bucket travelled by another collective than the plan has."""
    collectives = {
        tensor.name: entry.collective for tensor, entry in zip(problem.model.tensors, plan.buckets, strict=True)
    }
    for step in steps:
        for span in step.spans:
            collective = collectives.get(span.bucket, "auto")
            if span.candidate and collective != "auto" and not span.candidate.startswith(collective):
                raise PlanError(
                    f"{path}: in step {step.number} bucket {span.bucket!r} travelled by {span.candidate!r}, and by "
                    f"{collective!r} in the plan: this is the run of another plan, or the plan has changed since"
                )


def _changed(plan: Plan, end_ns: int, files: Mapping[str, Path]) -> Iterator[str]:
    """Say so where what the plan predicted is not what the files predict now."""
    said = plan.prediction.step_us if plan.prediction is not None else end_ns / 1e3
    if abs(end_ns / 1e3 - said) > 1e-3 * said:
        yield (
            f"the plan was made with another prediction, {said / 1e3:.3f} ms a step: the profile in "
            f"{files['model'].parent} has changed since, or this version predicts otherwise"
        )


def _rows(predicted: Sequence[Box], measured: Iterable[Sequence[Box]], step_us: Sequence[float]) -> list[Row]:
    """Return the terms, of all buckets, and last the step."""
    expected = seconds_by_term(predicted)
    seen = [seconds_by_term(found) for found in measured]
    rows = [Row(term, expected[term], statistics.median(one[term] for one in seen)) for term in TERMS]
    return [*rows, Row("step", _end_ns(predicted) * 1e-9, statistics.median(step_us) * 1e-6)]


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("", "predicted ms", "measured ms", "measured / predicted"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        name = f"{row.term}, all buckets" if row.term in TERMS else row.term
        times = f"{row.measured_s / row.predicted_s:.2f}" if row.predicted_s else ""
        table.add_row(name, f"{1e3 * row.predicted_s:.3f}", f"{1e3 * row.measured_s:.3f}", times)
    return table


def _end_ns(found: Sequence[Box]) -> int:
    return max(one.end_ns for one in found)
