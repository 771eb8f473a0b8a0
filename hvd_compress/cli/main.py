"""The entry point. Commands are imported when they are called, so that help is fast and needs no torch."""

from __future__ import annotations

import importlib
from typing import Any

import click

from hvd_compress import __version__, guests
from hvd_compress.cli.suggesting import Group
from hvd_compress.errors import HvdCompressError, shortened

# Each name is a module here that holds the command as `command`. Guests have more.
COMMANDS = {
    "doctor": "List what is installed, and say whether training can run.",
    "run": "Start a program on several ranks, as horovodrun does.",
    "bench": "Measure what this machine does, such as kernels and compressors.",
    "list": "List the compressions: kind, bits an element, source, collectives.",
    "choose": "Predict by formulas which collective is fastest for a bucket.",
    "plan": "Check a plan for Compression.plan(), or make one.",
}


class Refusal(click.ClickException):
    exit_code = 2


class LazyGroup(Group):
    words = ""

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command. An error of ours is for whoever typed it: its sentence, no traceback, and exit code 2."""
        try:
            return super().invoke(ctx)
        except HvdCompressError as error:
            raise Refusal(shortened(str(error))) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = importlib.import_module(f"hvd_compress.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items(), *guests.commands().items()])


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="hvd-compress")
def main() -> None:
    """Gradient compression for Horovod and PyTorch."""
