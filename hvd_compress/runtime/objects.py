"""Objects of Python, pickled, on their way between ranks that trust each other."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import torch

from hvd_compress.runtime.operations import allgather, broadcast_
from hvd_compress.runtime.world import ProcessSet, global_process_set, rank

if TYPE_CHECKING:
    from pickle import Pickler as Pickler
else:
    try:  # which knows functions without a name, too
        from cloudpickle import CloudPickler as Pickler
    except ImportError:
        from pickle import Pickler


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the object of rank `root_rank` of the job."""
    called = name or "object"
    is_root = rank() == root_rank
    packed = _packed(obj) if is_root else torch.zeros(0, dtype=torch.uint8, device="cpu")
    length = broadcast_(torch.tensor([packed.numel()], device="cpu"), root_rank, f"{called}.sz", process_set).item()
    packed = packed if is_root else torch.zeros(length, dtype=torch.uint8, device="cpu")
    broadcast_(packed, root_rank, f"{called}.t", process_set)
    return obj if is_root else _unpacked(packed)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in their order."""
    called, packed = name or "object", _packed(obj)
    lengths = allgather(torch.tensor([packed.numel()], device="cpu"), f"{called}.sz").tolist()
    return [_unpacked(part) for part in torch.split(allgather(packed, f"{called}.t"), lengths)]


def _packed(obj: Any) -> torch.Tensor:
    file = io.BytesIO()
    Pickler(file).dump(obj)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> Any:
    return pickle.load(io.BytesIO(packed.numpy().tobytes()))
