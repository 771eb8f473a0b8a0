"""Loss against steps: 4 ranks without a network, in one process where the method is ours, in 4 where it is torch's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.frame.processes import run_job
from benchmarks.time_to_accuracy.figures import Losses, smoothed
from benchmarks.time_to_accuracy.local import LocalRanks
from benchmarks.time_to_accuracy.methods import METHODS, MakeOptimizer, Method
from benchmarks.time_to_accuracy.tasks import RANKS, TASKS, Task
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings


class Enough:
    """When to measure the loss, and when to stop: after `steps`, or as soon after them as the loss is `target`.

    A single loss is noisy: here as in the figures, three in a row count as one.
    """

    def __init__(self, steps: int, every: int, most: int = 0, target: float = float("inf")) -> None:
        self.steps, self.every, self.most, self.target = steps, every, max(most, steps), target

    def due(self, taken: int) -> bool:
        return taken % self.every == 0

    def reached(self, losses: Losses) -> bool:
        return losses[-1][0] >= self.steps and len(losses) > 2 and smoothed(losses)[-1][1] <= self.target


class Replicas:
    """The ranks of one model whose replicas are alike: each rank is a thread with gradients and a reducer of its own.

    Args:
        parameters: of the model, by name.
        request: how gradients are exchanged.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], request: Request) -> None:
        self._parameters = parameters
        self._engines = engines = InProcessWorld(RANKS, timeout_s=300.0).engines
        self._ranks = [{name: nn.Parameter(torch.zeros_like(p)) for name, p in parameters.items()} for _ in engines]
        self._reducers = [
            Reducer(own, request, lambda engine=engine: engine, ReduceOptions(), Settings(adapt=False))
            for own, engine in zip(self._ranks, engines, strict=True)
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in engines]

    def take(self, rank: int) -> None:
        """The gradients of the model are those of this rank."""
        for name, parameter in self._parameters.items():
            self._ranks[rank][name].grad, parameter.grad = parameter.grad, None

    def exchange(self) -> None:
        """Give the model the average over ranks, as rank 0 has it."""
        for waiting in [thread.submit(self._reduce, rank) for rank, thread in enumerate(self._threads)]:
            waiting.result()
        for name, parameter in self._parameters.items():
            parameter.grad = self._ranks[0][name].grad

    def check_alike(self) -> None:
        """Raise RuntimeError unless all ranks have received the same bits."""
        for name, first in self._ranks[0].items():
            if not all(_same(first.grad, other[name].grad) for other in self._ranks[1:]):
                raise RuntimeError(f"the average of {name} differs from rank to rank")

    def close(self) -> None:
        for reducer, thread in zip(self._reducers, self._threads, strict=True):
            reducer.close()
            thread.shutdown()

    def _reduce(self, rank: int) -> None:
        for name in reversed(self._parameters):  # as in a backward pass
            self._reducers[rank].ready(name)
        self._reducers[rank].finish()


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """A parameter may have no gradient, on all ranks alike."""
    return one is other if one is None or other is None else torch.equal(one, other)


def in_process(
    task: Task,
    request: Request,
    seed: int,
    enough: Enough,
    tell: Callable[[int, float], None],
    make_optimizer: MakeOptimizer | None = None,
) -> Losses:
    """Train with 4 ranks in this process: one model, four gradients a step, and one step of the optimizer.

    Args:
        tell: is called with each loss.
        make_optimizer: that of the task, if not given.
    """
    torch.manual_seed(seed)
    model = task.model()
    optimizer = (make_optimizer or task.optimizer)(model.parameters())
    replicas = Replicas(dict(model.named_parameters()), request)

    def step(number: int) -> None:
        for rank in range(RANKS):
            task.loss(model, task.batch(seed, number, rank)).backward()
            replicas.take(rank)
        replicas.exchange()
        optimizer.step()
        optimizer.zero_grad()
        if enough.due(number + 1):
            replicas.check_alike()

    try:
        return _losses(task, model, step, enough, tell)
    finally:
        replicas.close()


def in_turns(
    task: Task, words: dict[str, Any], seed: int, enough: Enough, tell: Callable[[int, float], None]
) -> Losses:
    """Train with 4 ranks in this process that take local steps, as LocalSteps by `words`; the loss is of their mean."""
    torch.manual_seed(seed)
    mean = task.model()
    ranks = LocalRanks(task, mean, words, seed)

    def step(number: int) -> None:
        ranks.step(number)
        if enough.due(number + 1):
            ranks.average(mean)

    try:
        return _losses(task, mean, step, enough, tell)
    finally:
        ranks.close()


def in_processes(method: Method, task: str, seed: int, enough: Enough) -> Losses:
    """Train with 4 processes over gloo, by DDP and torch's own hook."""
    return run_job(RANKS, _by_ddp, method.name, task, seed, enough)


def _by_ddp(method: str, name: str, seed: int, enough: Enough) -> Losses:
    """A spawned process gets names: what builds a method cannot be pickled."""
    task, rank = TASKS[name], dist.get_rank()
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model(), bucket_cap_mb=METHODS[method].bucket_mb)
    METHODS[method].build(model)
    optimizer = (METHODS[method].optimizer or task.optimizer)(model.parameters())

    def step(number: int) -> None:
        task.loss(model, task.batch(seed, number, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def tell(taken: int, loss: float) -> None:
        if rank == 0:
            print(f"  {taken} steps: {loss:.3f}", flush=True)

    return _losses(task, model, step, enough, tell)


def _losses(
    task: Task, model: nn.Module, step: Callable[[int], None], enough: Enough, tell: Callable[[int, float], None]
) -> Losses:
    found: Losses = []
    for number in range(enough.most):
        step(number)
        if enough.due(number + 1):
            found.append((number + 1, task.validation_loss(model)))
            tell(*found[-1])
            if enough.reached(found):
                break
    return found
