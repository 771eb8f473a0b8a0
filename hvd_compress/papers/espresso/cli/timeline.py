"""`hvd-compress timeline`: one step as it was traced, as a picture and a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.outputs import PICTURES, require_outputs, require_picture
from hvd_compress.events.timeline import PHASES
from hvd_compress.papers.espresso.timeline.drawing import PICTURE, Panel, draw
from hvd_compress.papers.espresso.timeline.reading import TracedSpan, TracedStep, chosen, read
from hvd_compress.papers.espresso.timeline.traced import side_by_side, traced_boxes


@click.command("timeline")
@click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="By default one as long as the median, without step 0.")
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"The picture; by default next to the trace, as PNG. {PICTURES}"
)
def command(trace: Path, step: int | None, out: Path | None) -> None:
    """Draw one step from the TRACE that HVD_COMPRESS_TIMELINE names, and say what hides behind what."""
    picture = out or trace.with_suffix(".png")
    picture = picture if picture.suffix else picture.with_suffix(".png")
    require_outputs({"--out": picture}, [trace])
    require_picture(picture, PICTURE)
    steps = read(trace)
    later = [each for each in steps if each.number] if step is None else steps
    shown = chosen(later or steps, step, trace)
    numbers = {name: number for number, name in enumerate(_buckets(shown))}
    boxes = side_by_side(traced_boxes(shown, numbers))
    draw([Panel(f"{trace.name}: step {shown.number}", boxes, round(1e3 * shown.us), "step")], picture)
    console = Console(highlight=False)
    console.print(_table(shown))
    console.print(Text(_summary(shown)))
    click.echo(f"wrote {picture}")


def _buckets(step: TracedStep) -> list[str]:
    """Return the names of buckets in the order of their numbers."""
    return list(dict.fromkeys(span.bucket for span in step.spans if span.bucket))


def _table(step: TracedStep) -> Table:
    """Times in milliseconds from the beginning of the step."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("bucket", overflow="fold")
    table.add_column("travels by", overflow="fold")
    for phase in PHASES:
        table.add_column(f"{phase.lower()}\nms", justify="right", no_wrap=True)
    table.add_column("there at\nms", justify="right", no_wrap=True)
    begin_us = step.training("FORWARD").start_us
    for name in _buckets(step):
        phases = {span.phase: span for span in step.spans if span.bucket == name and not span.call}
        taken = [f"{_ms(phases[phase]):.2f}" if phase in phases else "" for phase in PHASES]
        end_us = max(span.end_us for span in phases.values())
        by = next((span.candidate for span in phases.values() if span.candidate), "")
        table.add_row(*map(Text, (name, by, *taken, f"{(end_us - begin_us) / 1e3:.2f}")))
    return table


def _summary(step: TracedStep) -> str:
    """Say what the training did, and how much of the exchange its backward pass hides."""
    forward, backward, wait = (_ms(step.training(phase)) for phase in ("FORWARD", "BACKWARD", "WAIT"))
    waits_from_us = step.training("WAIT").start_us
    under_way = list(_union((s.start_us, s.end_us) for s in step.spans if s.bucket and not s.call))
    taken_ms = sum(end - start for start, end in under_way) / 1e3
    hidden_ms = sum(max(0.0, min(end, waits_from_us) - start) for start, end in under_way) / 1e3
    share = f", {hidden_ms / taken_ms:.0%} of it beside the backward pass" if taken_ms else ""
    return (
        f"step {step.number}: {step.us / 1e3:.2f} ms: until the first gradient {forward:.2f}, backward {backward:.2f}, "
        f"wait {wait:.2f}; buckets were under way for {taken_ms:.2f} ms{share}"
    )


def _union(spans: Iterable[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """Yield times without those that lie within others."""
    last: tuple[float, float] | None = None
    for start, end in sorted(spans):
        if last is None or start > last[1]:
            if last is not None:
                yield last
            last = start, end
        else:
            last = last[0], max(last[1], end)
    if last is not None:
        yield last


def _ms(span: TracedSpan) -> float:
    return (span.end_us - span.start_us) / 1e3
