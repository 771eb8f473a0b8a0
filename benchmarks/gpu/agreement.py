"""Whether what ranks have is equal, byte by byte, and finite."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def of_all_ranks(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def faults_of_all(faults: Iterable[str]) -> list[str]:
    return [f"rank {rank}: {fault}" for rank, own in enumerate(of_all_ranks(list(faults))) for fault in own]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.view(torch.uint8).equal(b.view(torch.uint8))


def ranks_equal(values: torch.Tensor) -> bool:
    """Whether a tensor of the CPU has the same bytes on all ranks."""
    return len(set(of_all_ranks(hashlib.sha256(values.view(torch.uint8).numpy()).hexdigest()))) == 1


def not_finite(name: str, values: torch.Tensor) -> list[str]:
    return [] if values.isfinite().all() else [f"{name}: not finite"]
