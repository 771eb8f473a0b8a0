"""The entry point. Commands are imported when they are called, so that help is fast and needs no torch."""

from __future__ import annotations

import importlib

import click

from hvd_compress import __version__

# Each name is a module here that holds the command as `command`.
COMMANDS = {
    "doctor": "List what is installed, and say whether training can run.",
    "bench": "Measure what this machine does: kernels.",
    "netlab": "Emulate a network of hosts on this machine, and run jobs on it.",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"hvd_compress.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="hvd-compress")
def main() -> None:
    """Gradient compression for Horovod and PyTorch."""
