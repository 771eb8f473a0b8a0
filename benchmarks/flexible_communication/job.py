"""One rank of benchmarks/flexible_communication/run.py: trains the example's net by several methods, in turns.

The network changes between steps, by rank 0, so that every method takes equally many steps in each phase. What is timed
is training from its first step on, with what the method needs to set itself up; snapshots are evaluated afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "300")
os.environ["HVD_COMPRESS_HOROVOD_NICENESS"] = "0"  # Horovod's own method shares the process
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import torch
from figures import EPOCHS, TURN
from images.data import ImageData, load_images, rank_batches
from images.model import SmallConvNet
from images.training import evaluate, lr_factor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from train_images import ranks

import hvd_compress.torch as hvd
from hvd_compress.netlab import Schedule
from hvd_compress.netlab.lab import set_link
from hvd_compress.netlab.places import NAME_VARIABLE

SNAPSHOTS = 8
METHODS: dict[str, Callable[[], Any]] = {
    "horovod": lambda: hvd.Compression.none,
    "dense": hvd.Compression.dense,
    "adaptive knee": partial(hvd.Compression.flexible, 0.02),
    **{
        f"{name} {ratio:g}": partial(hvd.Compression.topk, ratio, scheme)
        for ratio in (0.1, 0.01, 0.001)
        for name, scheme in (("allgather", "allgather"), ("star", "star"), ("adaptive", "auto"))
    },
}
"""What to pass as `compression=`, by the names of the table."""


def main() -> None:
    wanted = json.loads(sys.argv[1])
    hvd.init()
    torch.set_num_threads(1)
    data = load_images()
    network = Network(wanted["schedule"], wanted["steps"])
    network.at(0)
    trainings = [Training(method, data, wanted) for method in wanted["methods"]]
    for turn, first in enumerate(range(0, wanted["steps"], TURN)):
        leading = turn % len(trainings)
        for training in (*trainings[leading:], *trainings[:leading]):
            training.run(range(first, min(first + TURN, wanted["steps"])), network)
        if hvd.rank() == 0 and turn % 5 == 4:
            print(f"  {min(first + TURN, wanted['steps'])} of {wanted['steps']} steps", flush=True)
    network.at(0)
    for number, training in enumerate(trainings, start=1):
        found = training.found()
        if hvd.rank() == 0:
            print(f"  {number} of {len(trainings)}: {training.method}, {sum(found['step_s']):.1f} s", flush=True)
            with Path(wanted["results"]).open("a") as file:
                file.write(json.dumps(found) + "\n")


class Training:
    """A new model, trained by one method, and what rank 0 sees of it."""

    def __init__(self, method: str, data: ImageData, wanted: dict[str, Any]) -> None:
        self.method, self._data, self._wanted = method, data, wanted
        seed, steps = wanted["seed"], wanted["steps"]
        # What is fixed keeps the engine's own algorithms, too.
        os.environ["HVD_COMPRESS_ADAPT"] = str(int(method.startswith("adaptive")))
        torch.manual_seed(seed)
        self._model = SmallConvNet()
        optimizer = torch.optim.SGD(self._model.parameters(), lr=wanted["lr"], momentum=0.9)
        self._optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self._model.named_parameters(), compression=METHODS[method]()
        )
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        self._rates = LambdaLR(self._optimizer, partial(lr_factor, steps=steps))
        self._batches = endless_batches(len(data.train), wanted["batch_size"], seed)
        self._step_s: list[float] = []
        self._used: list[str] = []
        self._snapshots: list[tuple[int, dict[str, torch.Tensor]]] = []

    def run(self, turn: range, network: Network) -> None:
        """Take some steps. What ranks still exchange after the last one is waited for, and counts as part of it."""
        network.at(turn[0])
        hvd.allreduce(torch.zeros(1), name=f"turn {self.method}")
        reducer = getattr(self._optimizer, "_reducer", None)  # plain Horovod has none
        adaptive = reducer is not None and reducer.session.controller is not None
        if adaptive:
            reducer.session.policy.resume()
            reducer.session.follow(reducer.session.step)
        for step in turn:
            network.at(step)
            start = time.perf_counter()
            images, labels = self._data.train.batch(next(self._batches))
            self._optimizer.zero_grad()
            functional.cross_entropy(self._model(images), labels).backward()
            self._optimizer.step()
            self._rates.step()
            self._step_s.append(time.perf_counter() - start)
            self._used.append(way(self._optimizer))
            if (step + 1) * SNAPSHOTS // self._wanted["steps"] > step * SNAPSHOTS // self._wanted["steps"]:
                state = self._model.state_dict()
                self._snapshots.append((step + 1, {name: value.clone() for name, value in state.items()}))

    def found(self) -> dict[str, Any]:
        """Evaluate the snapshots, and return all that is to be kept."""
        accuracies = []
        for step, state in self._snapshots:
            self._model.load_state_dict(state)
            accuracies.append((step, evaluate(self._model, self._data.test, ranks())))
        controller = getattr(self._optimizer, "controller", None)
        return {
            **{key: self._wanted[key] for key in ("schedule", "seed", "steps", "batch_size", "lr")},
            "method": self.method,
            "data": self._data.name,
            "parameters": sum(parameter.numel() for parameter in self._model.parameters()),
            "step_s": [round(seconds, 5) for seconds in self._step_s],
            "used": changes(self._used),
            "accuracies": accuracies,
            "events": [event.to_json() for event in controller.history.events] if controller is not None else [],
        }


class Network:
    """The lab's network as the schedule has it at a step; rank 0 sets it. Without a schedule there is no lab."""

    def __init__(self, schedule: str | None, steps: int) -> None:
        self._schedule, self._steps, self._now = schedule and Schedule.read(schedule), steps, None

    def at(self, step: int) -> None:
        if not self._schedule:
            return
        link = self._schedule.at(step * EPOCHS // self._steps)
        if link != self._now and hvd.rank() == 0:
            set_link(os.environ[NAME_VARIABLE], link)
        self._now = link


def endless_batches(count: int, batch_size: int, seed: int) -> Any:
    epoch = 0
    while True:
        yield from rank_batches(count, batch_size, rank=hvd.rank(), world_size=hvd.size(), seed=seed, epoch=epoch)[
            : count // hvd.size() // batch_size
        ]
        epoch += 1


def way(optimizer: Any) -> str:
    """How the first bucket travelled, in words, with its ratio."""
    decisions = getattr(optimizer, "decisions", None)
    if not decisions:
        return ""
    decision = next(iter(decisions.values()))
    return f"{decision.path} {decision.ratio:g}"


def changes(used: list[str]) -> list[tuple[int, str]]:
    """The first step of each run of equal values, with the value."""
    return [(step, value) for step, value in enumerate(used) if step == 0 or value != used[step - 1]]


if __name__ == "__main__":
    main()
