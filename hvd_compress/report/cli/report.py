"""`hvd-compress report`: how buckets travelled, and why, as a picture and a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import mean, median

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.outputs import PICTURES, require_outputs
from hvd_compress.events.history import Event
from hvd_compress.report.plot import draw
from hvd_compress.report.reading import read
from hvd_compress.report.words import distinct


@click.command("report")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"The picture; by default next to the log, as PNG. {PICTURES}"
)
def command(log: Path, out: Path | None) -> None:
    """Draw how buckets travelled and what that took, from the LOG that HVD_COMPRESS_LOG names."""
    events = read(log)
    picture = out or log.with_suffix(".png")
    picture = picture if picture.suffix else picture.with_suffix(".png")
    require_outputs({"--out": picture}, [log])
    draw(events, picture)
    Console().print(_summary(events))
    click.echo(f"wrote {picture}")


def _summary(events: Sequence[Event]) -> Table:
    """Ratios are those that are sent from then on, but for one that is said to be chosen. Times are of one exchange."""
    counted = any(math.isfinite(event.wire_ratio) for event in events)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("step", "bucket"):
        table.add_column(heading, justify="right")
    table.add_column("what", overflow="fold")
    for heading in ("measured\nms", "predicted\nms", *(("sent over\ndense",) if counted else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    words_of = distinct({event.compressor for event in events if event.compressor})
    for place, event in enumerate(events):
        seconds, sent = math.nan, math.nan
        if event.kind in ("choice", "root"):
            what = f"{event.candidate}, {words_of.get(event.compressor) or f'ratio {event.ratio:.4g}'}"
            seconds, sent = _taken(event, events[place + 1 :])
        elif event.kind == "ratio":
            what = f"ratio {event.ratio:.4g} chosen, gain {event.gain:.3f} expected"
        elif event.kind == "network":
            what = "the network is measured again"
        elif event.kind == "ccr":
            what = "communication over computation"
        else:
            continue
        figures = [_shown(1e3 * seconds, 2), _shown(1e3 * event.predicted_s, 2)]
        figures += [_shown(sent, 3)] if counted else []
        bucket = str(event.bucket) if event.bucket >= 0 else ""
        words = (str(event.step), bucket, what, *figures, event.reason)
        table.add_row(*map(Text, words))  # Text, as a log may contain what rich takes for markup
    return table


def _taken(choice: Event, later: Sequence[Event]) -> tuple[float, float]:
    """Return what a choice took in the windows until the next one like it.

    Seconds of an exchange, and bytes over those without compression; NaN where they are not known.
    """
    alike = [event for event in later if (event.bucket, event.candidate) == (choice.bucket, choice.candidate)]
    windows = list(takewhile(lambda event: event.kind == "window", alike))
    if not windows:
        return math.nan, math.nan
    return median(event.measured_s for event in windows), mean(event.wire_ratio for event in windows)


def _shown(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else ""
