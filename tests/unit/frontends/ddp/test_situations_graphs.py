"""Backward passes of all shapes in compressed DDP train as in plain DDP."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.unit.frontends.ddp.situations import STEPS, Situation, Wrap, check_as_plain, images, sgd, taught

WIDTH, ITEMS = 20, 12


class Blocks(nn.Module):
    """Some blocks of which a pass may leave out some, or compute their activations anew."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(13, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.last = nn.Linear(WIDTH, 4)
        self._reentrant = reentrant

    def forward(self, inputs: torch.Tensor, dropped: Collection[int] = ()) -> torch.Tensor:
        hidden = self.first(inputs)
        for number, block in enumerate(self.blocks):
            if number in dropped:
                continue
            if self._reentrant is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self._reentrant)
        return self.last(hidden)


def aim(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs - 1).square().mean()


def trained(wrap: Wrap, rank: int, reentrant: bool | None = None, **options: Any) -> Iterator[Any]:
    ddp, inputs = wrap(Blocks(reentrant), **options), images(rank, ITEMS, 13)
    return taught(ddp, sgd(ddp), lambda step: aim(ddp(inputs)))


def static_graph(wrap: Wrap, rank: int) -> Iterator[Any]:
    return trained(wrap, rank, static_graph=True)


def gradients_as_views(wrap: Wrap, rank: int) -> Iterator[Any]:
    return trained(wrap, rank, gradient_as_bucket_view=True)


def static_graph_and_views(wrap: Wrap, rank: int) -> Iterator[Any]:
    return trained(wrap, rank, static_graph=True, gradient_as_bucket_view=True)


def checkpoints(wrap: Wrap, rank: int) -> Iterator[Any]:
    return trained(wrap, rank, reentrant=False)


def checkpoints_with_unused(wrap: Wrap, rank: int) -> Iterator[Any]:
    return trained(wrap, rank, reentrant=False, find_unused_parameters=True)


def reentrant_checkpoints(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Each of which is a backward pass within the backward pass."""
    return trained(wrap, rank, reentrant=True)


def reentrant_checkpoints_of_a_static_graph(wrap: Wrap, rank: int) -> Iterator[Any]:
    return trained(wrap, rank, reentrant=True, static_graph=True)


def unused_by_rank(wrap: Wrap, rank: int) -> Iterator[Any]:
    """One block is not used by rank 0, another by no rank."""
    ddp, inputs = wrap(Blocks(), find_unused_parameters=True), images(rank, ITEMS, 13)
    return taught(ddp, sgd(ddp), lambda step: aim(ddp(inputs, {0, 2} if rank == 0 else {2})))


def layer_drop(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Each rank leaves out another block in each step."""
    ddp, inputs = wrap(Blocks(), find_unused_parameters=True), images(rank, ITEMS, 13)
    return taught(ddp, sgd(ddp), lambda step: aim(ddp(inputs, {(step + rank) % 3})))


class Heads(nn.Module):
    """Two heads, of which each has a loss of its own; through the second one no gradient reaches the trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(13, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        hidden = self.trunk(inputs).tanh()
        return [self.heads[0](hidden), self.heads[1](hidden.detach())]


def one_backward_pass_a_head(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Of one forward pass: DDP's buckets are full only in the second backward pass, or some in the first."""
    ddp, inputs = wrap(Heads()), images(rank, ITEMS, 13)
    optimizer = sgd(ddp)
    yield ddp
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [aim(outputs) for outputs in ddp(inputs)]
        for loss in losses if step % 2 else reversed(losses):
            loss.backward()
        optimizer.step()
        yield sum(loss.item() for loss in losses)


def one_forward_pass_a_head(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Each is reduced for itself, the second one with the mean of the first within its sum."""
    ddp, inputs = wrap(Heads(), find_unused_parameters=True), images(rank, ITEMS, 13)
    optimizer = sgd(ddp)
    yield ddp
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for head in range(2):
            losses.append(aim(ddp(inputs)[head]))
            losses[-1].backward()
        optimizer.step()
        yield sum(loss.item() for loss in losses)


@pytest.mark.parametrize(
    "situation",
    [
        static_graph,
        pytest.param(gradients_as_views, marks=pytest.mark.level2),
        pytest.param(static_graph_and_views, marks=pytest.mark.level2),
        checkpoints,
        pytest.param(checkpoints_with_unused, marks=pytest.mark.level2),
        reentrant_checkpoints,
        pytest.param(reentrant_checkpoints_of_a_static_graph, marks=pytest.mark.level2),
        unused_by_rank,
        pytest.param(layer_drop, marks=pytest.mark.level2),
        one_backward_pass_a_head,
        one_forward_pass_a_head,
    ],
    ids=lambda situation: situation.__name__,
)
def test_a_graph(situation: Situation) -> None:
    check_as_plain(situation)
