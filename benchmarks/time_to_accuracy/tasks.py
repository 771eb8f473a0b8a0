"""What is trained: the two tasks, each with its model, optimizer and data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property

import torch
from images.data import DEBIAN_FASHION_MNIST, DataError, ImageData, load_fashion_mnist, rank_batches
from images.model import SmallConvNet
from torch import nn
from torch.nn import functional

from benchmarks.time_to_accuracy.text import ByteTransformer, Text

RANKS = 4
Batch = tuple[torch.Tensor, torch.Tensor]


class Task(ABC):
    """A model with its optimizer and its data. Data are read at the first batch.

    Attributes:
        name: in files and on the command line.
        label: in tables.
        setting: what a rank's step is made of, in words.
    """

    name: str
    label: str
    setting: str

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model, by torch's generator."""

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer, whose learning rate is constant: loss against steps depends on no horizon then."""

    @abstractmethod
    def batch(self, seed: int, step: int, rank: int) -> Batch:
        """Return the inputs and targets of one rank in one step."""

    @abstractmethod
    def validation(self) -> Iterable[Batch]:
        """Return the batches of one size that a validation loss is the mean of."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy in nats."""
        scores, targets = model(batch[0]), batch[1]
        return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())

    @torch.no_grad()
    def validation_loss(self, model: nn.Module) -> float:
        losses = [self.loss(model, batch).item() for batch in self.validation()]
        return sum(losses) / len(losses)


class LanguageModel(Task):
    name = "language"
    label = "byte-level transformer, AdamW"
    setting = "AdamW at 1e-3, batch 8 of 64 bytes a rank"

    @cached_property
    def text(self) -> Text:
        return Text.read()

    def model(self) -> nn.Module:
        return ByteTransformer()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)

    def batch(self, seed: int, step: int, rank: int) -> Batch:
        return self.text.batch(8, torch.Generator().manual_seed((seed * 1_000_003 + step) * RANKS + rank))

    def validation(self) -> Iterable[Batch]:
        return [self.text.validation_batch()]


class Images(Task):
    name = "images"
    label = "convolutional net on Fashion-MNIST, SGD"
    setting = "SGD at 0.02 with momentum 0.9, batch 64 a rank"
    batch_size = 64

    @cached_property
    def data(self) -> ImageData:
        if not DEBIAN_FASHION_MNIST.is_dir():
            raise DataError(f"{DEBIAN_FASHION_MNIST} is missing: install Debian's package dataset-fashion-mnist")
        return load_fashion_mnist(DEBIAN_FASHION_MNIST)

    def model(self) -> nn.Module:
        return SmallConvNet()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)

    def batch(self, seed: int, step: int, rank: int) -> Batch:
        count = len(self.data.train)
        epoch, place = divmod(step, count // RANKS // self.batch_size)
        batches = rank_batches(count, self.batch_size, rank=rank, world_size=RANKS, seed=seed, epoch=epoch)
        return self.data.train.batch(batches[place])

    def validation(self) -> Iterable[Batch]:
        return (self.data.test.batch(indices) for indices in torch.arange(len(self.data.test)).split(500))


TASKS: dict[str, Task] = {task.name: task for task in (LanguageModel(), Images())}
