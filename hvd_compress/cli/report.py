"""`hvd-compress report`: what the controller did, as a picture and a summary."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hvd_compress.controller.history import Event, read
from hvd_compress.controller.plot import draw


@click.command("report", help="Draw what the controller did, from its log (HVD_COMPRESS_LOG).")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The picture; by default beside the log, as PNG.")
def command(log: Path, out: Path | None) -> None:
    events = read(log)
    picture = out or log.with_suffix(".png")
    picture = picture if picture.suffix else picture.with_suffix(".png")
    draw(events, picture)
    Console().print(_summary(events))
    click.echo(f"wrote {picture}")


def _summary(events: list[Event]) -> Table:
    table = Table("step", "bucket", "what", "ms", "why")
    for event in events:
        if event.kind in ("choice", "worker"):
            table.add_row(str(event.step), str(event.bucket), event.candidate, _ms(event.measured_s), event.reason)
        elif event.kind == "ratio":
            ratio = f"ratio {event.ratio:.4g}, gain {event.gain:.3f}"
            table.add_row(str(event.step), str(event.bucket), ratio, "", event.reason)
        elif event.kind in ("network", "noise"):
            factors = f"latency x {event.latency:.2g}, transfer x {event.transfer:.2g}"
            bucket = str(event.bucket) if event.bucket >= 0 else ""
            table.add_row(str(event.step), bucket, f"{event.kind}: {factors}", "", event.reason)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
