"""Loss against time of local steps by four ranks of which one takes four times as long for a step.

    python -m benchmarks.elastic.fleet --seeds 2

The ranks train in one process, and their time is counted, not measured: a step takes 1, or 4 on the slow rank, and
exchanges take nothing. Ranks wait for the slow one in each round; or have deadline_s="auto"; or do without it. The task
is the language model of benchmarks/time_to_accuracy.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import click
import torch
from torch import nn

from benchmarks.frame.circumstances import told
from benchmarks.frame.page import table
from benchmarks.time_to_accuracy.tasks import TASKS, Task
from hvd_compress.compression import Compression
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.frontends.local import clock
from hvd_compress.frontends.local.outer import averaging
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.frontends.local.schedule import Schedule
from hvd_compress.settings import Settings

EVERY = 8
STEP_S = (1.0, 1.0, 1.0, 4.0)
FLEETS: Mapping[str, tuple[tuple[float, ...], Any]] = {
    "all wait for the slow rank": (STEP_S, None),
    'deadline_s="auto"': (STEP_S, "auto"),
    "without the slow rank": (STEP_S[:3], None),
    "four fast ranks": ((1.0,) * 4, None),
}

_time = threading.local()


class Fleet:
    """The ranks of one training, each a thread with a time of its own, which waits for all in each exchange."""

    def __init__(self, task: Task, step_s: tuple[float, ...], deadline_s: Any, seed: int) -> None:
        self._task, self._step_s, self._deadline_s, self._seed = task, step_s, deadline_s, seed
        self._now_s, self._met = [0.0] * len(step_s), threading.Barrier(len(step_s))
        torch.manual_seed(seed)
        self._model = task.model()
        self.losses: list[float] = []
        self.taken = [0] * len(step_s)

    def train(self, at_s: Sequence[float]) -> None:
        """Train until the last of these times, and keep the validation loss at each."""
        self._at_s = at_s
        run_ranks(len(self._step_s), self._rank)

    def _rank(self, engine: Engine) -> None:
        torch.set_num_threads(1)
        model, own = copy.deepcopy(self._model), engine.rank
        optimizer = self._task.optimizer(model.parameters())
        replicas = Replicas(
            dict(model.named_parameters()), lambda *_: engine, own, engine.world_size, Settings(adapt=False)
        )
        rounds = Rounds(replicas, Compression.int4(), outer=averaging)
        schedule = Schedule(rounds, every=EVERY, start_after=0, delay=0, deadline_s=self._deadline_s)
        _time.now_s = self._met_s = 0.0
        rounds.open()
        land, rounds.land = rounds.land, lambda: self._landed(own, model, land)  # type: ignore[method-assign]
        while self._met_s < self._at_s[-1]:
            self._task.loss(model, self._task.batch(self._seed, self.taken[own], own)).backward()
            schedule.before_step()
            optimizer.step()
            self.taken[own] += 1
            _time.now_s += self._step_s[own]
            schedule.after_step()
            optimizer.zero_grad()
        rounds.close()

    def _landed(self, own: int, model: nn.Module, land: Callable[[], bool]) -> bool:
        """Wait for the slowest within an exchange, so that ranks do not count it as their work."""
        counts = land()
        self._now_s[own] = _time.now_s
        self._met.wait()
        now_s: float = max(self._now_s)
        _time.now_s = self._met_s = now_s
        while own == 0 and len(self.losses) < len(self._at_s) and now_s >= self._at_s[len(self.losses)]:
            self.losses.append(self._task.validation_loss(model))
        self._met.wait()
        return counts


@click.command(help=__doc__)
@click.option("--seeds", default=2, show_default=True)
@click.option("--until", "until_s", default=240.0, show_default=True, help="Steps of a fast rank.")
def main(seeds: int, until_s: float) -> None:
    clock.perf_counter = lambda: _time.now_s  # type: ignore[attr-defined]
    task, at = TASKS["language"], [until_s / 4, until_s / 2, until_s]
    rows = []
    for name, (step_s, deadline_s) in FLEETS.items():
        found: list[list[float]] = []
        for seed in range(seeds):
            fleet = Fleet(task, step_s, deadline_s, seed)
            fleet.train(at)
            found.append(fleet.losses)
            click.echo(f"{name}, seed {seed}: {fleet.losses}, steps {fleet.taken}", err=True)
        rows.append(
            [name, "/".join(map(str, fleet.taken)), *(f"{fmean(each):.3f}" for each in zip(*found, strict=True))]
        )
    print(f"every={EVERY}, int4, {seeds} seeds. {told()}")
    print(table(["fleet", "steps of the ranks", *(f"loss at {each:g}" for each in at)], rows))


if __name__ == "__main__":
    main()
