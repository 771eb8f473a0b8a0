"""`hvd-compress report`: what the controller did, as a picture and a summary."""

from __future__ import annotations

import math
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from hvd_compress.cli.outputs import PICTURES
from hvd_compress.events.history import Event, read
from hvd_compress.events.plot import draw


@click.command("report")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"The picture; by default beside the log, as PNG. {PICTURES}"
)
def command(log: Path, out: Path | None) -> None:
    """Draw what the controller did, from its LOG, which HVD_COMPRESS_LOG names."""
    events = read(log)
    picture = out or log.with_suffix(".png")
    picture = picture if picture.suffix else picture.with_suffix(".png")
    draw(events, picture)
    Console().print(_summary(events))
    click.echo(f"wrote {picture}")


def _summary(events: list[Event]) -> Table:
    """Ratios are those that are sent from then on, but for one that is said to be chosen. Times are of one exchange."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("step", "bucket"):
        table.add_column(heading, justify="right")
    table.add_column("what", overflow="fold")
    for heading in ("measured\nms", "predicted\nms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for event in events:
        times = "", ""
        if event.kind in ("choice", "worker"):
            what = f"{event.candidate}, ratio {event.ratio:.4g}"
            times = _ms(event.measured_s), _ms(event.predicted_s)
        elif event.kind == "ratio":
            what = f"ratio {event.ratio:.4g} chosen, gain {event.gain:.3f} expected"
        elif event.kind in ("network", "noise"):
            what = f"{event.kind}: latency x {event.latency:.2g}, transfer x {event.transfer:.2g}"
        else:
            continue
        bucket = str(event.bucket) if event.bucket >= 0 else ""
        table.add_row(str(event.step), bucket, what, *times, event.reason)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if math.isfinite(seconds) else ""
