"""Command lines that say what was meant: commands, and the choices of options. For options click says it."""

from __future__ import annotations

from typing import Any

import click

from hvd_compress.errors import did_you_mean, known_are


class Group(click.Group):
    """A group whose error of an unknown command names the one that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument, and the others. Raises UsageError where there is none."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
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
