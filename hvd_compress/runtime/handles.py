"""Tensors that are on their way, by the numbers that programs hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.runtime.executor import Entry
from hvd_compress.runtime.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM, Request
from hvd_compress.runtime.world import ProcessSet, world

OPS = (AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT)
"""By Horovod's numbers."""

Average, Sum, Adasum, Min, Max, Product = range(6)

_numbers = itertools.count()
_on_their_way: dict[int, tuple[Sequence[Entry], Callable[[list[Any]], Any]]] = {}


def submit(
    verb: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[list[Any]], Any],
    *,
    outputs: Sequence[torch.Tensor] | None = None,
    **fields: Any,
) -> int:
    """Submit tensors, several as a group, and return a handle. `finish` makes of their results what it stands for.

    Raises:
        ConfigError: no tensor, a sparse one, a process set that is not in use or without this rank, or a name that is
            in flight.
        UsageError: before init().
        CommunicationError: a rank is gone.
    """
    own = world()
    number = process_set.process_set_id
    if number is None or not process_set.included():
        raise ConfigError(f"rank {own.engine.rank} cannot take part in {verb} over {process_set}")
    whole = own.unnamed(f"{verb}.{number}" if number else verb) if name is None else f"{verb}.{name}"
    entries = []
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ConfigError(
                f"{verb} takes dense tensors, not {type(tensor).__name__} {getattr(tensor, 'layout', '')}"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        called = whole if len(tensors) == 1 else f"{whole}.{place}"
        group = ("", 1) if len(tensors) == 1 else (whole, len(tensors))
        request = Request(verb, called, number, dtype, tuple(tensor.shape), group=group, **fields)
        given = tensor.detach().cpu().contiguous()
        output = None if outputs is None or tensor.is_cuda else outputs[place].detach()
        entries.append(Entry(request, given, output))
    own.runtime.submit(entries)
    handle = next(_numbers)
    _on_their_way[handle] = entries, finish
    return handle


def poll(handle: int) -> bool:
    """Return whether synchronize() would not wait. Raises ConfigError for what is no handle."""
    if handle not in _on_their_way:
        raise ConfigError(f"{handle!r} is no handle of a tensor on its way")
    return all(entry.done.is_set() for entry in _on_their_way[handle][0])


def synchronize(handle: Any) -> Any:
    """Wait for a handle and return the result; None for one that was waited for.

    Raises:
        ConfigError: ranks want different things; the message has both.
        CommunicationError: a rank did not come, has left or is gone.
    """
    if callable(handle):  # of a sparse allreduce
        return handle()
    entries, finish = _on_their_way.pop(handle, ((), lambda _: None))
    return finish([world().runtime.wait(entry) for entry in entries])


def join(device: int = -1) -> int:
    """Take part in allreduces with zeros until all ranks have joined; return the one that came last."""
    del device  # Horovod's, for zeros on a GPU
    last = world().runtime.join()
    world().counts.clear()  # ranks that joined early have counted fewer
    return last
