"""What the tests of FSDP share: a small language model, ways to shard it, and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

import hvd_compress.fsdp as hc
from hvd_compress.request.request import Request

WORDS, WIDTH, BLOCKS = 31, 96, 3


class Model(nn.Module):
    """Its embedding's gradients come last, within FSDP's own end of the backward pass; its last bias is uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, WORDS)
        self.is_reversed = False
        self.checkpoint: Callable[..., torch.Tensor] | None = None

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found = self.embed(words)
        for block in reversed(self.blocks) if self.is_reversed else self.blocks:
            if not getattr(block, "left_out", False):
                found = found + (self.checkpoint(block, found) if self.checkpoint is not None else block(found))
        result: torch.Tensor = self.head(found)
        return result


def mesh_of(*sizes: int) -> DeviceMesh:
    names = ("replicas", "shards")[-len(sizes) :]
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def sharded(mesh: DeviceMesh, apply: Callable[..., Any] = fully_shard, **options: Any) -> Any:
    """Return the same model in each call, distributed module by module."""
    torch.manual_seed(0)
    model = Model()
    for block in model.blocks:
        apply(block, mesh=mesh, **options)
    return apply(model, mesh=mesh, **options)


def compressed(mesh: DeviceMesh, request: Request | None, feedback: bool = False, **options: Any) -> Any:
    model = sharded(mesh, **options)
    return model if request is None else hc.compress(model, request, feedback=feedback)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """Of a batch of this rank's own: each word is followed by one of four."""
    draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    words = torch.randint(0, WORDS, (8, 8), generator=draw)
    following = words * 7 + torch.randint(0, 4, words.shape, generator=draw)
    return functional.cross_entropy(model(words).float().flatten(0, 1), following.remainder(WORDS).flatten())


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], clip: float = 1.0) -> list[float]:
    """Take steps, with clipped gradients; return their losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found.detach()


def parameters(model: nn.Module) -> torch.Tensor:
    """Return this rank's shards, one behind the other."""
    return torch.cat([local(each).reshape(-1).clone() for each in model.parameters()])


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([local(each.grad).reshape(-1).clone() for each in model.parameters()])


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks, of any lengths."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, tensor)
    return found
