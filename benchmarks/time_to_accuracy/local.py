"""Loss against steps where ranks exchange once in several of them: each is a thread with a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from benchmarks.time_to_accuracy.tasks import RANKS, Task
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.frontends.local.schedule import Schedule
from hvd_compress.settings import Settings


class LocalRanks:
    """The ranks of a training by LocalSteps.

    Args:
        model: with which all begin.
        words: what LocalSteps takes by name.
    """

    def __init__(self, task: Task, model: nn.Module, words: Mapping[str, Any], seed: int) -> None:
        self._task, self._seed = task, seed
        engines = InProcessWorld(RANKS, timeout_s=300.0).engines
        self._models = [copy.deepcopy(model) for _ in engines]
        self._optimizers = [task.optimizer(each.parameters()) for each in self._models]
        self._rounds = [_rounds(each, engine, words) for each, engine in zip(self._models, engines, strict=True)]
        self._schedules = [
            Schedule(each, every=words["every"], start_after=words["start_after"], delay=words["delay"])
            for each in self._rounds
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in engines]
        self._each(lambda rank: self._rounds[rank].open())

    def step(self, number: int) -> None:
        """Take the next step on all ranks."""
        self._each(lambda rank: self._step(rank, number))

    @torch.no_grad()
    def average(self, model: nn.Module) -> None:
        """Give `model` the mean of all ranks' parameters."""
        for parameter, *own in zip(model.parameters(), *(each.parameters() for each in self._models), strict=True):
            parameter.copy_(torch.stack(own).mean(0))

    def close(self) -> None:
        for rounds, thread in zip(self._rounds, self._threads, strict=True):
            rounds.close()
            thread.shutdown()

    def _step(self, rank: int, number: int) -> None:
        optimizer, schedule = self._optimizers[rank], self._schedules[rank]
        self._task.loss(self._models[rank], self._task.batch(self._seed, number, rank)).backward()
        schedule.before_step()
        optimizer.step()
        schedule.after_step()
        optimizer.zero_grad()

    def _each(self, call: Callable[[int], None]) -> None:
        for waiting in [thread.submit(call, rank) for rank, thread in enumerate(self._threads)]:
            waiting.result()


def _rounds(model: nn.Module, engine: Engine, words: Mapping[str, Any]) -> Rounds:
    parameters, settings = dict(model.named_parameters()), Settings(adapt=False)
    replicas = Replicas(parameters, lambda *_: engine, engine.rank, RANKS, settings)
    parts = words["fragments"]
    return Rounds(replicas, words["compression"], outer=words["outer"], fragment_count=parts, mix=words["mix"])
