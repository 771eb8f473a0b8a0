"""hvd-compress chai: clustered head attention, from the command line."""

from __future__ import annotations

import click

from hvd_compress.attention.cli.analyse import analyse
from hvd_compress.attention.cli.bench import bench
from hvd_compress.cli.suggesting import Group


@click.group(cls=Group)
def command() -> None:
    """Cluster the heads of a model's attention, and measure what that saves (CHAI)."""


command.add_command(analyse)
command.add_command(bench)
