"""`hvd-compress plan count-options`: how many options the planner's tree has, and how many constraints leave of it."""

from __future__ import annotations

from typing import Any

import click

from hvd_compress.papers.espresso.cli.pruning import constrained, constraints_of
from hvd_compress.papers.espresso.options import options


@click.command(
    "count-options",
    help="Print how many options the tree has: 4341 with two devices, 174 with one.",
    short_help="Print how many options the planner's tree has.",
)
@constrained
def command(**asked: Any) -> None:
    click.echo(len(options(constraints_of(**asked))))
