"""`hvd-compress bench`: a group, which guests bring the commands of."""

from __future__ import annotations

import click

from hvd_compress.cli.suggesting import Group


@click.group("bench", cls=Group, help="Measure what this machine does.")
def command() -> None: ...
