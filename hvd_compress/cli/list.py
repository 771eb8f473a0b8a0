"""`hvd-compress list`: what `Compression` offers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.decision import Request

LAYOUT = Layout.of((1024, 1024))
NEEDED = {"tau": 1.0}
"""For arguments without a default; how many bits are sent does not depend on them."""
OTHERS = ("auto", "covap", "plan", "of")
"""They choose among compressors or steps, or take one of the user's own."""


@click.command("list", help="List the compressions: kind, bits an element, source, schemes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    rows = [_row(name) for name in names()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("Compression.", "kind", "bits", "feedback", "schemes", "source"):
        table.add_column(heading, justify="right" if heading == "bits" else "left", overflow="fold")
    for row in rows:
        bits = f"{'' if row['fixed'] else '<= '}{row['bits']:.3g}"
        feedback = "yes" if row["error_feedback"] else "no"
        table.add_row(row["name"], row["kind"], bits, feedback, ", ".join(row["schemes"]), row["source"])
    Console().print(table)
    click.echo("Bits an element of a matrix of 1024 by 1024, with the settings that each has by default.")
    named = [name for name in schemes.labels() if schemes.by_name(name)]
    click.echo(f"Schemes that run by name alone: {', '.join(named)}; --json says what each carries.")
    click.echo(f"Besides: {', '.join(OTHERS)}; none and fp16 are the front end's own.")


def names() -> list[str]:
    """Return the functions of `Compression` that name a compressor, in the order in which they are written."""
    parts = [vars(part).items() for part in Compression.__mro__]
    return [n for part in parts for n, f in part if isinstance(f, staticmethod) and n not in OTHERS]


def request_of(name: str, given: Mapping[str, Any] = NEEDED) -> Request:
    """Return what a function of `Compression` returns by default; `given` holds arguments that have no default."""
    function = getattr(Compression, name)
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is inspect.Parameter.empty]
    request: Request = function(**{argument: given[argument] for argument in needed})
    return request


def _row(name: str) -> dict[str, Any]:
    compressor = request_of(name).compressor
    rounds, found = compressor.wire(LAYOUT), schemes.names_for(compressor)
    return {
        "name": name,
        "kind": compressor.kind,
        "bits": 8 * sum(round_.nbytes for round_ in rounds) / LAYOUT.numel,
        "fixed": all(round_.fixed for round_ in rounds),
        "error_feedback": compressor.error_feedback,
        "schemes": [name for name in found if not schemes.by_name(name)],
        "by_name": [name for name in found if schemes.by_name(name)],
        "source": compressor.source,
    }
