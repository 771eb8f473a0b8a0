"""One rank of benchmarks/flexible_communication/run.py: trains the example's net by one method after the other.

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
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import torch
from figures import EPOCHS
from images.data import ImageData, load_images, rank_batches
from images.model import SmallConvNet
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from train_images import evaluate, lr_factor

import hvd_compress.torch as hvd
from hvd_compress.netlab import Schedule
from hvd_compress.netlab.lab import set_link
from hvd_compress.netlab.places import NAME_VARIABLE

SNAPSHOTS = 8
METHODS: dict[str, Callable[[], Any]] = {
    "horovod": lambda: hvd.Compression.none,
    "dense": hvd.Compression.dense,
    "adaptive knee": hvd.Compression.auto,
    "adaptive pace": partial(hvd.Compression.auto, "pace", high=1.0),
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
    for number, method in enumerate(wanted["methods"], start=1):
        found = train(data, method, wanted)
        if hvd.rank() == 0:
            print(f"  {number} of {len(wanted['methods'])}: {method}, {sum(found['step_s']):.1f} s", flush=True)
            with Path(wanted["results"]).open("a") as file:
                file.write(json.dumps(found) + "\n")


def train(data: ImageData, method: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Train a new model and return what rank 0 saw of it."""
    seed, steps, batch_size = wanted["seed"], wanted["steps"], wanted["batch_size"]
    # What is fixed keeps the engine's own algorithms, too.
    os.environ["HVD_COMPRESS_ADAPT"] = str(int(method.startswith("adaptive")))
    torch.manual_seed(seed)
    model = SmallConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=wanted["lr"], momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=METHODS[method]()
    )
    network = Network(wanted["schedule"], steps)
    network.at(0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    rates = LambdaLR(optimizer, partial(lr_factor, steps=steps))
    batches = endless_batches(len(data.train), batch_size, seed)
    step_s, used, snapshots = [], [], []
    hvd.allreduce(torch.zeros(1), name=f"begin {method}")
    for step in range(steps):
        network.at(step)
        start = time.perf_counter()
        images, labels = data.train.batch(next(batches))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        rates.step()
        step_s.append(time.perf_counter() - start)
        used.append(way(optimizer))
        if (step + 1) * SNAPSHOTS // steps > step * SNAPSHOTS // steps:
            snapshots.append((step + 1, {name: value.clone() for name, value in model.state_dict().items()}))
    network.at(0)
    accuracies = []
    for step, state in snapshots:
        model.load_state_dict(state)
        accuracies.append((step, evaluate(model, data.test)))
    controller = getattr(optimizer, "controller", None)
    return {
        **{key: wanted[key] for key in ("schedule", "seed", "steps", "batch_size", "lr")},
        "method": method,
        "data": data.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "step_s": [round(seconds, 5) for seconds in step_s],
        "used": changes(used),
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
    return f"{decision.candidate} {decision.ratio:g}"


def changes(used: list[str]) -> list[tuple[int, str]]:
    """The first step of each run of equal values, with the value."""
    return [(step, value) for step, value in enumerate(used) if step == 0 or value != used[step - 1]]


if __name__ == "__main__":
    main()
