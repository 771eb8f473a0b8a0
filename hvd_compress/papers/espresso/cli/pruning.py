"""What prunes the planner's tree, on command lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from hvd_compress.cli.suggesting import Choice
from hvd_compress.papers.espresso.options import DEVICES, Constraints

Command = TypeVar("Command", bound=Callable[..., Any])
COMMUNICATION = {"any": (True, True), "flat": (True, False), "hierarchical": (False, True)}
"""Whether it may be flat, and whether hierarchical."""

_OPTIONS = (
    click.option("--devices", type=click.IntRange(1, 2), help="How many may compress: 1 leaves out the host's CPU."),
    click.option("--device", "named", multiple=True, type=Choice(DEVICES), help="That may compress; may be repeated."),
    click.option("--mixed/--not-mixed", default=True, help="Whether a tensor may be compressed on both devices."),
    click.option("--max-compressions", type=click.IntRange(min=0), help="Of one tensor."),
    click.option(
        "--communication",
        type=Choice(list(COMMUNICATION)),
        default="any",
        show_default=True,
        help="Flat: all ranks alike. Hierarchical: within hosts, and across.",
    ),
    click.option("--dense-within", is_flag=True, help="No payloads between the ranks of a host, if hierarchical."),
    click.option("--only", multiple=True, metavar="OPTION", help="The name of an option; may be repeated."),
)


def constrained(command: Command) -> Command:
    """Give a command the options that prune the tree; `constraints_of` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def constraints_of(
    devices: int | None,
    named: tuple[str, ...],
    mixed: bool,
    max_compressions: int | None,
    communication: str,
    dense_within: bool,
    only: tuple[str, ...],
) -> Constraints:
    """Return what the options of the command line allow. Raises PlanError for names that are unknown."""
    if devices is not None and named:
        raise click.UsageError("--devices says how many, --device which: give one of them")
    flat, hierarchical = COMMUNICATION[communication]
    return Constraints(
        devices=named or DEVICES[: devices or len(DEVICES)],
        most_compressions=max_compressions,
        mixed=mixed,
        flat=flat,
        hierarchical=hierarchical,
        payloads_within=not dense_within,
        only=only,
    )
