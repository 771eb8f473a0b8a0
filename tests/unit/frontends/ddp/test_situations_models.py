"""Models of all sorts in compressed DDP train as in plain DDP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.frontends.ddp.situations import Situation, Wrap, check_as_plain, images, sgd, taught

ITEMS, CLASSES = 12, 5


class Tied(nn.Module):
    """A table that is also the last layer's weight, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 20)
        self.last.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.table(words)).tanh())


def tied_weights(wrap: Wrap, rank: int) -> Iterator[Any]:
    ddp = wrap(Tied())
    words = torch.arange(12) * (rank + 3) % 20
    return taught(ddp, sgd(ddp), lambda step: nn.functional.cross_entropy(ddp(words), (words + 1) % 20))


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
    )


def classified(ddp: nn.Module, pictures: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(ddp(pictures), torch.arange(len(pictures)) % CLASSES)


def batch_norm(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Whose buffers DDP broadcasts from rank 0 in each forward pass."""
    ddp, pictures = wrap(convolutions()), images(rank, ITEMS, 3, 6, 6)
    return taught(ddp, sgd(ddp), lambda step: classified(ddp, pictures))


def channels_last(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Gradients have the strides of their parameters, in DDP's buckets and out of them."""
    ddp = wrap(convolutions().to(memory_format=torch.channels_last))
    pictures = images(rank, ITEMS, 3, 6, 6).contiguous(memory_format=torch.channels_last)

    def loss_of(step: int) -> torch.Tensor:
        assert not ddp.module[0].weight.is_contiguous()
        return classified(ddp, pictures)

    return taught(ddp, sgd(ddp), loss_of)


class Stack(nn.Module):
    """Three layers, each in a dtype of its own."""

    def __init__(self, *dtypes: torch.dtype, width: int = 24) -> None:
        super().__init__()
        sizes = [(13, width), (width, width), (width, CLASSES)]
        self.layers = nn.ModuleList(nn.Linear(*size, dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs.to(layer.weight.dtype)).tanh()
        return inputs.float()


def stack(wrap: Wrap, rank: int, *dtypes: torch.dtype) -> Iterator[Any]:
    ddp, inputs = wrap(Stack(*dtypes)), images(rank, ITEMS, 13)
    return taught(ddp, sgd(ddp, lr=0.5), lambda step: classified(ddp, inputs))


def bfloat16(wrap: Wrap, rank: int) -> Iterator[Any]:
    return stack(wrap, rank, torch.bfloat16, torch.bfloat16, torch.bfloat16)


def mixed_dtypes(wrap: Wrap, rank: int) -> Iterator[Any]:
    return stack(wrap, rank, torch.float32, torch.bfloat16, torch.float64)


def frozen_from_the_start(wrap: Wrap, rank: int) -> Iterator[Any]:
    model = Stack(*[torch.float32] * 3)
    model.layers[1].requires_grad_(False)
    ddp, inputs = wrap(model), images(rank, ITEMS, 13)
    return taught(ddp, sgd(ddp, lr=0.5, weight_decay=0.1), lambda step: classified(ddp, inputs))


def fused_adamw(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Which wants gradients of its parameters' strides."""
    ddp = wrap(convolutions().to(memory_format=torch.channels_last))
    pictures = images(rank, ITEMS, 3, 6, 6)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01, fused=True)
    return taught(ddp, optimizer, lambda step: classified(ddp, pictures))


def wide() -> nn.Module:
    """Of more than 1 MiB, below which torch.compile cuts no graph."""
    return Stack(*[torch.float32] * 3, width=600)


def compiled_around(wrap: Wrap, rank: int) -> Iterator[Any]:
    """torch.compile(DistributedDataParallel(...)), which cuts its graph where DDP's buckets end."""
    ddp, inputs = wrap(wide(), bucket_cap_mb=1), images(rank, ITEMS, 13)
    compiled = torch.compile(ddp, backend="aot_eager")
    return taught(ddp, sgd(ddp), lambda step: classified(compiled, inputs))


def compiled_within(wrap: Wrap, rank: int) -> Iterator[Any]:
    ddp, inputs = wrap(torch.compile(wide(), backend="aot_eager"), bucket_cap_mb=1), images(rank, ITEMS, 13)
    return taught(ddp, sgd(ddp), lambda step: classified(ddp, inputs))


@pytest.mark.parametrize(
    ("situation", "tolerance"),
    [
        (tied_weights, 1e-5),
        (batch_norm, 1e-5),
        (channels_last, 1e-5),
        (bfloat16, 1e-2),
        (mixed_dtypes, 1e-2),
        (frozen_from_the_start, 1e-5),
        (fused_adamw, 1e-3),
        pytest.param(compiled_around, 1e-5, marks=pytest.mark.level2),
        pytest.param(compiled_within, 1e-5, marks=pytest.mark.level2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_model(situation: Situation, tolerance: float) -> None:
    check_as_plain(situation, tolerance)
