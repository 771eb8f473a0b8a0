"""`hvd-compress plan options`: the options of the planner's tree, and what constraints leave of it."""

from __future__ import annotations

from typing import Any

import click

from hvd_compress.papers.espresso.cli.pruning import constrained, constraints_of
from hvd_compress.papers.espresso.options import options


@click.command(
    "options",
    help="List the options of the tree, one a line; a star marks a collective of payloads.",
    short_help="List the options of the planner's tree.",
)
@constrained
def command(**asked: Any) -> None:
    for option in options(constraints_of(**asked)):
        click.echo(str(option))
