"""`hvd-compress list`: what `Compression` offers."""

from __future__ import annotations

import json
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.compression.named import OTHERS, names, request_of

LAYOUT = Layout.of((1024, 1024))
WIDE = 100
"""Columns of a terminal from which on collectives and sources share what is left."""


@click.command("list", help="List the compressions: kind, bits an element, source, collectives.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    rows = [_row(name) for name in names()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("name", "kind", "bits", "feedback"):
        table.add_column(heading, justify="right" if heading == "bits" else "left", no_wrap=True)
    longest = 1 + max(len(collective) for row in rows for collective in row["collectives"])  # and its comma
    table.add_column("collectives", width=longest if console.width < WIDE else None)
    table.add_column("source")
    for row in rows:
        bits = f"{'' if row['fixed'] else '<= '}{row['bits']:.3g}"
        feedback = "yes" if row["error_feedback"] else "no"
        table.add_row(row["name"], row["kind"], bits, feedback, ", ".join(row["collectives"]), row["source"])
    console.print(table)
    named = [name for name in collectives.labels() if collectives.by_name(name)]
    for line in (
        "Names are functions of Compression, such as Compression.topk(ratio=0.01).",
        "Bits an element of a matrix of 1024 by 1024, with the settings that each has by default.",
        f"Collectives that run by name alone: {', '.join(named)}; --json says what each carries.",
        f"Besides: {', '.join(OTHERS)}; none and fp16 are the front end's own.",
    ):
        console.print(Text(line))


def _row(name: str) -> dict[str, Any]:
    compressor = request_of(name).compressor
    rounds, found = compressor.wire(LAYOUT), collectives.names_for(compressor)
    return {
        "name": name,
        "kind": compressor.kind,
        "bits": 8 * sum(round_.priced for round_ in rounds) / LAYOUT.numel,
        "fixed": compressor.is_fixed(LAYOUT),
        "error_feedback": compressor.error_feedback,
        "collectives": [name for name in found if not collectives.by_name(name)],
        "by_name": [name for name in found if collectives.by_name(name)],
        "source": compressor.source,
    }
