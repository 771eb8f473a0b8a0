"""An ordinary training loop with a stop-watch in it. How a step is distributed, the scripts say."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from images.data import ImageData, Split, rank_batches
from images.methods import METHODS, build_compression
from images.model import SmallConvNet
from images.progress import track
from images.ranks import Ranks
from images.report import EpochReport, describe_choices
from images.timing import StepMeter

WARM_UP = 0.1  # share of all steps in which the learning rate rises
TEST_BATCH = 500


@dataclass(frozen=True)
class Settings:
    """What a run is made of. `batch_size` is that of one rank."""

    batch_size: int
    epochs: int = 5
    compression: str = "star"
    ratio: float | None = None
    algorithm: str | None = None
    engine: str | None = None
    device: str = "cpu"
    lr: float = 0.02
    seed: int = 1


class Distributed(Protocol):
    """A model that all ranks train. The constructor takes the model, the compression, and the learning rate's peak.

    Attributes:
        last_step: a report of the last exchange, None where the compression gives none.
        decisions: what was decided for each bucket, by the names of its parameters.
        controller: what chooses while training, None where nothing is chosen.
    """

    optimizer: torch.optim.Optimizer

    @property
    def last_step(self) -> Any: ...

    @property
    def decisions(self) -> Mapping[tuple[str, ...], Any]: ...

    @property
    def controller(self) -> Any: ...

    def step(self, images: torch.Tensor, labels: torch.Tensor, meter: StepMeter) -> torch.Tensor:
        """Take one step, its phases timed by `meter`, and return the loss."""


Distribute = Callable[[nn.Module, Any, float], Distributed]


def train(
    data: ImageData, settings: Settings, ranks: Ranks, compressions: Any, distribute: Distribute
) -> list[EpochReport]:
    """Train a new model; every rank works on its own share of the images.

    Args:
        compressions: the front end's `Compression`.
        distribute: makes a model one that all ranks train.
    """
    compression = build_compression(
        compressions, settings.compression, ratio=settings.ratio, algorithm=settings.algorithm, engine=settings.engine
    )
    torch.manual_seed(settings.seed)
    model = SmallConvNet().to(settings.device)
    distributed = distribute(model, compression, settings.lr)

    epochs = [shuffled_batches(data.train, settings, epoch, ranks) for epoch in range(settings.epochs)]
    schedule = LambdaLR(distributed.optimizer, partial(lr_factor, steps=sum(map(len, epochs))))
    reports = []
    for number, batches in enumerate(epochs, start=1):
        label = f"{settings.compression}, epoch {number}/{settings.epochs}"
        meter = StepMeter(count_values(model), METHODS[settings.compression].value_bytes, ranks.size)
        start = time.perf_counter()
        shown = track(batches, label, show=ranks.rank == 0)
        images = (tuple(part.to(settings.device) for part in data.train.batch(indices)) for indices in shown)
        loss = train_epoch(distributed, schedule, images, meter)
        epoch_s = time.perf_counter() - start
        step = ranks.mean({"loss": loss, **meter.means()})
        reports.append(EpochReport(number, step.pop("loss"), evaluate(model, data.test, ranks), epoch_s, step))
        ranks.say(f"{label}: {reports[-1].text()}")
    if settings.compression == "auto" or distributed.controller is not None:
        ranks.say(describe_choices(distributed.decisions))
    return reports


def train_epoch(
    distributed: Distributed,
    schedule: LambdaLR,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    meter: StepMeter,
) -> float:
    """Take one step a batch and return the mean loss."""
    losses = []
    for images, labels in batches:
        loss = distributed.step(images, labels, meter)
        schedule.step()
        meter.end_step(distributed.last_step)
        losses.append(loss.item())
    return math.fsum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: nn.Module, test: Split, ranks: Ranks) -> float:
    """Return the accuracy on the whole test set, of which each rank looks at its share."""
    correct = 0
    for indices in torch.arange(ranks.rank, len(test), ranks.size).split(TEST_BATCH):
        images, labels = (part.to(next(model.parameters()).device) for part in test.batch(indices))
        correct += int((model(images).argmax(dim=1) == labels).sum())
    return ranks.sum(torch.tensor(correct)).item() / len(test)


def shuffled_batches(split: Split, settings: Settings, epoch: int, ranks: Ranks) -> tuple[torch.Tensor, ...]:
    """Return this rank's batches of an epoch, as indices."""
    return rank_batches(
        len(split), settings.batch_size, rank=ranks.rank, world_size=ranks.size, seed=settings.seed, epoch=epoch
    )


def lr_factor(step: int, steps: int) -> float:
    """Rise in a straight line during the warm-up, then fall to zero along half a cosine."""
    warm_up = math.ceil(WARM_UP * steps)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def count_values(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
