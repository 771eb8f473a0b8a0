"""Tensors that are on their way, by the numbers that programs hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.runtime.executor import Entry
from hvd_compress.runtime.reduce import can_reduce
from hvd_compress.runtime.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM, Request
from hvd_compress.runtime.world import ProcessSet, world

OPS = (AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT)
"""By Horovod's numbers."""

Average, Sum, Adasum, Min, Max, Product = range(6)

_numbers = itertools.count()
_in_flight: dict[int, tuple[Sequence[Entry], Callable[[list[Any]], Any]]] = {}


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
        ConfigError: no tensors, a sparse one, a dtype that has no such operation, a process set that is not in use or
            without this rank, or a name that is in flight.
        UsageError: before init().
        CommunicationError: a rank is gone.
    """
    own = world()
    if not tensors:
        raise ConfigError(f"a group of {verb} has no tensors")
    number = process_set.process_set_id
    if number is None:
        raise ConfigError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    if not process_set.included():
        raise ConfigError(
            f"rank {own.engine.rank} is not in the process set of ranks {process_set.ranks}: call {verb} where "
            "process_set.included() alone"
        )
    request = Request(verb, "", number, **fields)
    into = [None] * len(tensors) if outputs is None else outputs
    entries = [_entry(request, *each) for each in zip(tensors, into, strict=True)]
    # The last that can fail: ranks count what has no name.
    whole = own.unnamed(f"{verb}.{number}" if number else verb) if name is None else f"{verb}.{name}"
    for place, entry in enumerate(entries):
        parts = (whole, ("", 1)) if len(entries) == 1 else (f"{whole}.{place}", (whole, len(entries)))
        entry.request = entry.request._replace(name=parts[0], group=parts[1])
    own.runtime.submit(entries)
    handle = next(_numbers)
    _in_flight[handle] = entries, finish
    return handle


def _entry(request: Request, tensor: Any, output: torch.Tensor | None) -> Entry:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{request.verb} takes a tensor, not a {type(tensor).__name__}: pass torch.tensor(value)")
    if tensor.layout != torch.strided:
        raise ConfigError(
            f"{request.verb} takes dense tensors, not one of {tensor.layout}: pass tensor.to_dense(), or call "
            "hvd.sparse_allreduce_async()"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized or (request.op and request.op != ADASUM and not can_reduce(tensor.dtype, request.op)):
        raise ConfigError(f"{request.verb} of {dtype} has no {request.op}: take another dtype, such as float32")
    given = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if (
        output is not None
    ):  # `finish` writes to those of a GPU, of inference mode, or conjugated, in the caller's thread
        _require_writable(request.verb, output)
        is_lazy = output.is_conj() or output.is_neg()
        output = None if output.is_cuda or output.is_inference() or is_lazy else output.detach()
    return Entry(request._replace(dtype=dtype, shape=tuple(tensor.shape)), given, output)


def _require_writable(verb: str, output: torch.Tensor) -> None:
    shared = any(stride == 0 and size > 1 for size, stride in zip(output.shape, output.stride(), strict=True))
    if shared and output.numel():
        raise ConfigError(f"{verb} cannot write a tensor whose elements share memory: pass tensor.clone()")


def poll(handle: int) -> bool:
    """Return whether synchronize() would not wait. Raises ConfigError for what is no handle."""
    if handle not in _in_flight:
        raise ConfigError(f"{handle!r} is no handle of a tensor on its way: synchronize() may have returned it already")
    return all(entry.done.is_set() for entry in _in_flight[handle][0])


def synchronize(handle: Any) -> Any:
    """Wait for a handle and return the result; None for one that was waited for.

    Raises:
        RanksDifferError: ranks want different things; the message has both.
        CommunicationError: a rank did not come, has left or is gone.
    """
    if callable(handle):  # of a sparse allreduce
        return handle()
    entries, finish = _in_flight.pop(handle, ((), lambda _: None))
    return finish([world().runtime.wait(entry) for entry in entries])


def drop(handle: Any) -> None:
    """Forget a handle: nobody will wait for it. The collective takes place all the same."""
    if not callable(handle):
        _in_flight.pop(handle, None)


def join(device: int = -1) -> int:
    """Take part in allreduces with zeros until all ranks have joined; return the one that came last."""
    del device  # Horovod's, for zeros on a GPU
    last = world().runtime.join()
    world().counts.clear()  # ranks that joined early have counted fewer
    return last
