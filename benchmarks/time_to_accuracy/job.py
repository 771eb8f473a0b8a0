"""One rank of a job in the lab: trains a task's model by several methods, each with a model of its own.

What is to be done comes from lab.py: windows of steps in turns, a search until what is chosen stands, or trainings from
start to end. Rank 0 tells what was found, a line each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
import hvd_compress.torch as hvd
from benchmarks.frame.lab import asked, tell
from benchmarks.frame.ranks import from_rank_0, over_gloo, say
from benchmarks.frame.turns import rounds, window
from benchmarks.time_to_accuracy.figures import EVERY, smoothed
from benchmarks.time_to_accuracy.methods import (
    DDP,
    HOROVOD,
    LOCAL,
    METHODS,
    NONE,
    OURS_IN_DDP,
    POST_LOCAL,
    TORCHFT,
    MakeOptimizer,
    Method,
)
from benchmarks.time_to_accuracy.rivals import TorchftSteps, averaging
from benchmarks.time_to_accuracy.tasks import TASKS, Task
from hvd_compress.local import LocalSteps
from hvd_compress.request.request import Request

Trained = tuple[nn.Module, Any, Callable[[], AbstractContextManager[None]]]
"""What to call instead of the model, what to step, and within what the model is evaluated."""
WARM_UP = 2
"""Steps before the first window: buckets are cut in the first one."""


def main() -> None:
    wanted = asked()
    hvd.init()
    with over_gloo():
        {"windows": windows, "search": search, "train": train}[wanted["do"]](wanted)
    hvd.shutdown()


class Replica:
    """This rank's part of a training by one method."""

    def __init__(self, task: Task, method: Method, seed: int = 1, plan: str | None = None) -> None:
        self._task, self._seed, self._taken, self.method = task, seed, 0, method
        os.environ["HVD_COMPRESS_ADAPT"] = str(int(method.searches and plan is None))
        torch.manual_seed(seed)
        self.model = task.model()
        self._train, self.optimizer, self._averaged = FRONT_ENDS[method.front_end](
            self.model, method.optimizer or task.optimizer, method, plan
        )

    @property
    def trained(self) -> nn.Module:
        """What is called instead of the model."""
        return self._train

    def step(self) -> None:
        """Forward, backward, exchange, optimizer."""
        self.optimizer.zero_grad()
        self._task.loss(self._train, self._task.batch(self._seed, self._taken, dist.get_rank())).backward()
        self.optimizer.step()
        self._taken += 1

    def turn(self) -> None:
        """Take the steps that the method takes at a time."""
        for _ in range(self.method.turn):
            self.step()

    def validation_loss(self) -> float:
        """Return that of rank 0: replicas are alike, or averaged."""
        with self._averaged():
            loss = self._task.validation_loss(self.model) if dist.get_rank() == 0 else 0.0
        return from_rank_0(loss)


def _horovod(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    compression = method.build(hvd.Compression) if plan is None else hvd.Compression.plan(plan)
    named = list(model.named_parameters())
    if not isinstance(compression, Request):  # Horovod's own remembers a tensor by its name
        named = [(f"{method.name}.{name}", parameter) for name, parameter in named]
    return model, hvd.DistributedOptimizer(optimizer(model.parameters()), named, compression), nullcontext


def _ours_in_ddp(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    wrapped = hc.compress(DistributedDataParallel(model, bucket_cap_mb=method.bucket_mb), method.build(hc.Compression))
    return wrapped, optimizer(model.parameters()), nullcontext


def _ddp(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=method.bucket_mb)
    method.build(wrapped)
    return wrapped, optimizer(model.parameters()), nullcontext


def _none(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    return model, optimizer(model.parameters()), nullcontext


def _local(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    made = optimizer(model.parameters())
    return model, made, LocalSteps(made, model, **method.build(hvd.Compression)).averaged


def _post_local(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)  # else each step waits for a broadcast
    method.build(wrapped)
    return wrapped, averaging(optimizer(model.parameters()), method.turn), nullcontext


def _torchft(model: nn.Module, optimizer: MakeOptimizer, method: Method, plan: str | None) -> Trained:
    made = optimizer(model.parameters())
    made.torchft = TorchftSteps(  # lives as long as the optimizer
        model, made, method.name, method.turn, method.build(hvd.Compression)
    )
    return model, made, nullcontext


FRONT_ENDS = {
    **{HOROVOD: _horovod, OURS_IN_DDP: _ours_in_ddp, DDP: _ddp, NONE: _none},
    **{LOCAL: _local, TORCHFT: _torchft, POST_LOCAL: _post_local},
}


def windows(wanted: dict[str, Any]) -> None:
    """Measure windows of `before` + `steps` steps of each method in turns. It takes about `seconds`.

    Of local steps a window has as many rounds, and begins in the middle of one, so that it has all of their exchanges.
    """
    names, plans, task = wanted["methods"], wanted["plans"], TASKS[wanted["task"]]
    replicas = [Replica(task, METHODS[name], plan=plans.get(name)) for name in names]
    for name, replica in zip(names, replicas, strict=True):
        warm_up = replica.method.turn // 2  # the middle of a round
        while warm_up < WARM_UP:
            warm_up += replica.method.turn
        say(f"  {name}: {window(replica.step, warm_up):.3f} s a step while warming up")
    start_s = time.monotonic()
    turns = [replica.turn for replica in replicas]
    for number, taken in enumerate(rounds(turns, wanted["steps"], wanted["before"]), start=1):
        found = zip(names, replicas, taken, strict=True)
        tell(wanted, {name: round(turn_s / replica.method.turn, 5) for name, replica, turn_s in found})
        say(f"  round {number}, {time.monotonic() - start_s:.0f} s")
        if number >= wanted["least"] and from_rank_0(time.monotonic() - start_s) >= wanted["seconds"]:
            return


def search(wanted: dict[str, Any]) -> None:
    """Train by one method until what it has chosen stands, and save that as a plan."""
    (name,) = wanted["methods"]
    replica, step_s = Replica(TASKS[wanted["task"]], METHODS[name]), []
    while len(step_s) < wanted["most"]:
        step_s.append(round(window(replica.step), 5))
        controller = hvd.of(replica.optimizer).controller
        if controller is None or (controller.settled and not any(d.is_trial for d in _decisions(replica))):
            break
    chosen = [f"{decision.compressor} by {decision.path}" for decision in _decisions(replica)]
    say(f"  {name}: {len(step_s)} steps in {sum(step_s):.1f} s, then {chosen}")
    if dist.get_rank() == 0:
        Path(wanted["plan"]).parent.mkdir(parents=True, exist_ok=True)
        hvd.of(replica.optimizer).save_plan(wanted["plan"])
    tell(wanted, {"method": name, "step_s": step_s, "chosen": chosen})


def _decisions(replica: Replica) -> list[Any]:
    trained = replica.optimizer if hasattr(replica.optimizer, "handle") else replica.trained
    return list(hvd.of(trained).decisions.values())


def reasons(replica: Replica) -> list[str]:
    """Return why buckets travel as they do, each reason once."""
    return list(dict.fromkeys(decision.reason for decision in _decisions(replica)))


def train(wanted: dict[str, Any]) -> None:
    """Train by each method, one after the other, from the start until the loss is `target`, for `most` steps at most.

    A step's time is its own; the loss is measured between steps and takes none.
    """
    for name in wanted["methods"]:
        replica, step_s, losses = Replica(TASKS[wanted["task"]], METHODS[name]), [], []
        while len(step_s) < wanted["most"] and not _reached(losses, wanted["target"]):
            step_s.append(round(window(replica.step), 5))
            if len(step_s) % EVERY == 0:
                losses.append((len(step_s), replica.validation_loss()))
                say(f"  {name}: {len(step_s)} steps in {sum(step_s):.1f} s, loss {losses[-1][1]:.3f}")
        chosen = reasons(replica) if METHODS[name].searches else []
        tell(wanted, {"method": name, "target": wanted["target"], "step_s": step_s, "losses": losses, "chosen": chosen})


def _reached(losses: Sequence[tuple[int, float]], target: float) -> bool:
    return len(losses) > 2 and smoothed(losses)[-1][1] <= target


if __name__ == "__main__":
    main()
