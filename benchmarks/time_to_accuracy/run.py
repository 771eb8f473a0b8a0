"""Seconds to a given loss: loss against steps without a network, times seconds a step on emulated networks.

    python -m benchmarks.time_to_accuracy.run loss       (hours on 2 cores)
    python -m benchmarks.time_to_accuracy.run seconds    (root)
    python -m benchmarks.time_to_accuracy.run page

What each run found is kept in build/time_to_accuracy, so that an interrupted benchmark goes on where it stopped. `page`
adds it to the figures that are committed.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

os.environ.setdefault("HVD_COMPRESS_NUM_THREADS", "1")  # in one process ranks take turns on the cores

import click

from benchmarks.time_to_accuracy import gather, lab
from benchmarks.time_to_accuracy.figures import EVERY, GOALS, STEPS, Figures, loss_at, steps_to
from benchmarks.time_to_accuracy.lab import NETWORKS
from benchmarks.time_to_accuracy.losses import LONG, MOST, LossRun, wanted
from benchmarks.time_to_accuracy.methods import ASKED, BASELINE, METHODS, REFERENCE
from benchmarks.time_to_accuracy.page import page as markdown
from benchmarks.time_to_accuracy.picture import draw
from benchmarks.time_to_accuracy.places import RESULT, begin
from benchmarks.time_to_accuracy.tasks import TASKS, DataError
from hvd_compress.errors import ConfigError, UnsupportedError

_tasks = click.option("--tasks", default=",".join(TASKS), show_default=True)
_networks = click.option("--networks", default=",".join(NETWORKS), show_default=True)
_methods = click.option("--methods", default=",".join(ASKED), show_default=True)

QUICK_TASK, QUICK = "language", (REFERENCE, "horovod-fp16", "int4", "powersgd")


class Commands(click.Group):
    """Says what is missing, such as root's rights or a data set, in a line."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (ConfigError, UnsupportedError, DataError) as error:
            raise click.ClickException(str(error)) from error


@click.group(help=__doc__, cls=Commands)
def main() -> None:
    begin()


@main.command()
@_tasks
@_methods
@click.option("--seeds", default="1,2,3", show_default=True)
@click.option("--most", default=MOST, show_default=True, help="Steps after which a slow method is given up.")
@click.option("--long", "are_long", is_flag=True, help=f"Train for {LONG} steps, whatever loss is reached.")
def loss(tasks: str, methods: str, seeds: str, most: int, are_long: bool) -> None:
    """Train with 4 ranks in process, without a network."""
    runs = wanted(tasks.split(","), methods.split(","), [int(seed) for seed in seeds.split(",")], are_long)
    missing = [run for run in runs if run.finished(most) is None]
    click.echo(f"{len(runs)} runs, {len(missing)} of them to do")
    start = time.monotonic()
    for number, run in enumerate(missing, start=1):
        click.echo(f"{number} of {len(missing)}: {run.task}, {run.curve}, seed {run.seed}")
        found = run.train(lambda taken, loss: click.echo(f"  {taken} steps: {loss:.3f}"), most)
        click.echo(f"  {found['seconds']:.0f} s; {(time.monotonic() - start) / 60:.0f} min in all")


@main.command()
@_tasks
@_networks
@_methods
@click.option("--seconds", "budget_s", default=150.0, show_default=True, help="Of a job's rounds, about.")
@click.option("--least", default=1, show_default=True, help="Rounds of a job, whatever they take.")
@click.option("--again", is_flag=True, help="Let methods that search choose anew.")
def seconds(tasks: str, networks: str, methods: str, budget_s: float, least: int, again: bool) -> None:
    """Measure seconds a step in the lab, in paired windows (root). Each call adds rounds."""
    names = list(dict.fromkeys([REFERENCE, *methods.split(",")]))
    for task in tasks.split(","):
        for network in networks.split(","):
            for name in names:
                if METHODS[name].searches and (again or not lab.plan_of(task, name, network).exists()):
                    click.echo(f"{task}, {NETWORKS[network].label}: what does {name} choose?")
                    lab.search(task, network, name)
            click.echo(f"{task}, {NETWORKS[network].label}: {len(names)} methods in turns")
            lab.measure(task, network, names, budget_s, least)


@main.command()
@click.option("--task", default="language", show_default=True, type=click.Choice(list(TASKS)))
@click.option("--network", default="100mbit-5ms", show_default=True, type=click.Choice(list(NETWORKS)))
@click.option("--methods", default=f"{REFERENCE},horovod-fp16,int4", show_default=True)
@click.option("--most", default=MOST, show_default=True, help="Steps of a training.")
def confirm(task: str, network: str, methods: str, most: int) -> None:
    """Train in the lab from start to end, to dense's loss of seed 1 after the last step that the page shows (root)."""
    for name in methods.split(","):
        if METHODS[name].differs_between_exchanges:
            raise click.ClickException(f"{name}: its replicas differ between exchanges, so that none has its loss")
    dense = LossRun(task, BASELINE, 1).finished()
    recorded = Figures(json.loads(RESULT.with_suffix(".json").read_text()))
    losses = dense["losses"] if dense is not None else recorded.losses(task, BASELINE)["1"]
    lab.train(task, network, methods.split(","), loss_at(losses, STEPS), most)


@main.command()
@click.option("--again", is_flag=True, help="From the figures that the page was made of, whatever was run since.")
def page(again: bool) -> None:
    """Make page, picture and figures of what was run."""
    file = RESULT.with_suffix(".json")
    if not again:
        file.write_text(gather.dumps(gather.gather()))
    figures = Figures(json.loads(file.read_text()))
    RESULT.with_suffix(".md").write_text(markdown(figures))
    draw(figures, RESULT.with_suffix(".png"))
    click.echo(f"{file}: {file.stat().st_size:,} bytes")


@main.command()
@click.option("--methods", default=",".join(QUICK), show_default=True)
def quick(methods: str) -> None:
    """Train the language model by a few methods, one seed (10 minutes), and multiply by the recorded seconds a step."""
    recorded = Figures(json.loads(RESULT.with_suffix(".json").read_text()))
    start, dense = time.monotonic(), {}
    for name in dict.fromkeys([REFERENCE, *methods.split(",")]):
        curve, most = METHODS[name].trained_as, STEPS + EVERY
        run = LossRun(QUICK_TASK, curve, 1)
        found = run.finished(most) or run.train(lambda taken, loss: click.echo(f"  {taken} steps: {loss:.3f}"), most)
        dense = dense or found
        click.echo(f"{METHODS[name].label}, {time.monotonic() - start:.0f} s")
        for goal in GOALS:
            taken = steps_to(found["losses"], loss_at(dense["losses"], goal)) if curve != BASELINE else float(goal)
            click.echo(f"  to dense's loss after {goal} steps: {_product(recorded, name, taken)}")


def _product(recorded: Figures, name: str, steps: float | None) -> str:
    """Say what so many steps take on each network, by the recorded seconds of a step."""
    if steps is None:
        return f"more than {STEPS} steps"
    networks = [n for n in recorded.networks(QUICK_TASK) if name in recorded.methods(QUICK_TASK, n)]
    seconds = [f"{steps * recorded.step_s(QUICK_TASK, n, name):.0f} s at {NETWORKS[n].label}" for n in networks]
    return f"{steps:.0f} steps, {'; '.join(seconds)}"


if __name__ == "__main__":
    main()
