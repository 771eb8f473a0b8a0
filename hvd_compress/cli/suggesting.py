"""Command lines that say what was meant: commands, and the choices of options. For options click says it."""

from __future__ import annotations

from typing import Any

import click

from hvd_compress import guests
from hvd_compress.errors import did_you_mean, known_are


class Group(click.Group):
    """A group that also has the commands of guests. Its error of an unknown command names the one that was meant."""

    @property
    def words(self) -> str:
        """What is typed for it, after hvd-compress."""
        return str(self.name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return its own commands, and those of guests."""
        return [*super().list_commands(ctx), *guests.commands(self.words)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of its own, or of a guest, which is imported now; None without."""
        if cmd_name in guests.commands(self.words):
            command: click.Command = guests.command(f"{self.words} {cmd_name}".strip())
            return command
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument, and the others. Raises UsageError where there is none."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            if missing := guests.missing_command(f"{self.words} {name}".strip()):
                ctx.fail(f"{name!r} {missing}")
            ctx.fail(f"No such command {name!r}{known_are(self.list_commands(ctx), name)}")
        return super().resolve_command(ctx, args)


class Choice(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2 alone
    """One of some words, whose error names the one that was meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word. Raises BadParameter where it is none of them."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(error.message.removesuffix(".") + did_you_mean(value, self.choices), param, ctx)
