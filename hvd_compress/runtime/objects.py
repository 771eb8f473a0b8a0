"""Objects of Python, pickled, on their way between ranks that trust each other."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hvd_compress.errors import ConfigError, HvdCompressError
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
    packed, failed = _packed(obj) if is_root else (torch.zeros(0, dtype=torch.uint8, device="cpu"), None)
    length = broadcast_(_length(packed, failed), root_rank, f"{called}.sz", process_set).item()
    _require_packed([length], [root_rank], failed)
    packed = packed if is_root else torch.zeros(length, dtype=torch.uint8, device="cpu")
    broadcast_(packed, root_rank, f"{called}.t", process_set)
    return obj if is_root else _unpacked(packed)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in their order."""
    called = name or "object"
    packed, failed = _packed(obj)
    lengths = allgather(_length(packed, failed), f"{called}.sz").tolist()
    _require_packed(lengths, range(len(lengths)), failed)
    return [_unpacked(part) for part in torch.split(allgather(packed, f"{called}.t"), lengths)]


def _packed(obj: Any) -> tuple[torch.Tensor, Exception | None]:
    """Return an object's bytes, or none and why it has none: all ranks must know."""
    file = io.BytesIO()
    try:
        Pickler(file).dump(obj)
    except HvdCompressError:  # of an object that no rank can send, such as an optimizer
        raise
    except Exception as error:
        return torch.zeros(0, dtype=torch.uint8, device="cpu"), error
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8), None


def _length(packed: torch.Tensor, failed: Exception | None) -> torch.Tensor:
    return torch.tensor([packed.numel() if failed is None else -1], device="cpu")


def _require_packed(lengths: Sequence[int], ranks: Sequence[int], failed: Exception | None) -> None:
    if bad := [each for each, length in zip(ranks, lengths, strict=True) if length < 0]:
        why = f" ({failed}): pip install cloudpickle for functions and classes without a module" if failed else ""
        raise ConfigError(f"the object of rank {bad[0]} cannot be pickled{why}") from failed


def _unpacked(packed: torch.Tensor) -> Any:
    return pickle.load(io.BytesIO(packed.numpy().tobytes()))
