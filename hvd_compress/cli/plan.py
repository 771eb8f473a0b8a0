"""`hvd-compress plan`: make plans, check them, draw them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.suggesting import Group
from hvd_compress.policies.plan_schema import Plan, Treatment, read


@click.group("plan", cls=Group, help="Make, check and draw a plan for Compression.plan().")
def command() -> None: ...


@command.command(
    "check",
    help="Read FILE, and print what it says; exit with 2 where it is no plan.",
    short_help="Print what a plan says; exit with 2 where it is none.",
)
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    plan = read(file)
    console = Console()
    console.print(_table(plan))
    if plan.prediction is not None:
        step, dense = plan.prediction.step_us / 1e3, plan.prediction.dense_us / 1e3
        console.print(Text(f"predicted step {step:.3f} ms; without compression {dense:.3f} ms"))
    console.print(Text(f"{file}: a plan for {_for_whom(plan)}; whether it fits is checked in the first step"))


def _for_whom(plan: Plan) -> str:
    ranks = "any number of ranks" if plan.world_size is None else f"{plan.world_size} ranks"
    model = "any model with such names" if plan.model is None else f"a model of {len(plan.model)} parameters"
    return f"{ranks} and {model}"


def _table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("parameters", "compressor", "path", "device"):
        table.add_column(heading, overflow="fold")
    rows: list[tuple[str, Treatment]] = [(_bucket(entry.parameters), entry) for entry in plan.buckets]
    rows += [(entry.pattern, entry) for entry in plan.patterns]
    if plan.default is not None:
        rows.append(("all others", plan.default))
    for name, treatment in rows:
        words = (name, _compressor(treatment), str(treatment.path), treatment.device)
        table.add_row(*map(Text, words))  # Text, as names may contain what rich takes for markup
    return table


def _bucket(names: tuple[str, ...]) -> str:
    return f"one bucket: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _compressor(treatment: Treatment) -> str:
    name, dtype = treatment.compressor["name"], treatment.compressor.get("dtype")
    if not treatment.built().compresses:
        return "none" if dtype is None else f"none, sent as {dtype}"
    settings = {key: value for key, value in treatment.compressor.items() if key != "name" and value is not None}
    return " ".join([name, *(f"{key}={_word(value)}" for key, value in settings.items())])


def _word(value: Any) -> str:
    """Return a setting as --compressor takes it."""
    return value if isinstance(value, str) else json.dumps(value)
