"""Moves tensors as an answer says, over an engine of its process set: the same calls on all of its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import UnsupportedError
from hvd_compress.runtime import reduce
from hvd_compress.runtime.request import (
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    REDUCESCATTER,
    REMOVE_SET,
    Request,
    Response,
)


@dataclass(eq=False)
class Entry:
    """A tensor that was submitted.

    Attributes:
        tensor: what this rank gives, contiguous; None where nothing is moved.
        output: where the result belongs; None: a new tensor. Of allreduce and broadcast.
        result: when it is done: a tensor; of an all-to-all also the rows that came from each member; of ADD_SET its
            number.
        error: or else why not.
        done: set when either is there.
    """

    request: Request
    tensor: torch.Tensor | None = None
    output: torch.Tensor | None = None
    result: Any = None
    error: Exception | None = None
    done: Event = field(default_factory=Event)

    def end(self, error: Exception | None = None) -> None:
        """Let go of the tensors, and of who waits. The first call counts."""
        if self.done.is_set():
            return
        self.error, self.tensor, self.output = error, None, None
        self.done.set()


class Executor:
    """Has an engine for each process set of this rank.

    Args:
        engine: over all ranks; others are split from it.
        fusion_bytes: so much memory for what is moved as one is kept, of each dtype.
    """

    def __init__(self, engine: Engine, fusion_bytes: int) -> None:
        self.rank, self._fusion_bytes = engine.rank, fusion_bytes
        self._engines: dict[int, Engine] = {0: engine}
        self._memory: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}  # for what is moved as one

    def takes_part(self, response: Response) -> bool:
        """Whether this rank is in its process set."""
        return response.requests[0].process_set_id in self._engines

    def run(self, response: Response, entries: Mapping[str, Entry]) -> None:
        """Move what the response names, and give the entries their results. A name without an entry takes zeros."""
        request = response.requests[0]
        engine = self._engines[request.process_set_id]
        own = entries.get(request.name)
        if request.verb == ALLREDUCE:
            self._allreduce(engine, response, entries)
        elif request.verb == ADD_SET:
            self._add_set(response.last, request.shape)
        elif request.verb == REMOVE_SET:
            removed = self._engines.pop(request.shape[0], None)
            if removed is not None:
                removed.close()
        elif request.verb != BARRIER:
            assert own is not None, "those that have joined take part in allreduces and barriers alone"
            move = {
                ALLGATHER: self._allgather,
                BROADCAST: self._broadcast,
                ALLTOALL: self._alltoall,
                REDUCESCATTER: self._reducescatter,
            }[request.verb]
            move(engine, response, own)
        if own is not None and request.verb == ADD_SET:
            own.result = response.last
        self._engines[0].take_calls()  # of all sets; nobody asks for them

    def close(self) -> None:
        """Let later engines have what these hold."""
        self._engines[0].close()

    def abort(self, why: str) -> None:
        """End what runs, or else let the process end all the same."""
        if self._engines[0].capabilities.aborts:
            self._engines[0].abort(why)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Let the process end without waiting for ranks that may be stopped."""
        self._engines[0].abandon()

    def _add_set(self, number: int, ranks: Sequence[int]) -> None:
        world = self._engines[0]
        made = world.split(0 if world.rank in ranks else None)
        if made is not None:
            self._engines[number] = made

    def _allreduce(self, engine: Engine, response: Response, entries: Mapping[str, Entry]) -> None:
        request = response.requests[0]
        mine = [entries.get(each.name) for each in response.requests]
        if None in mine and self.rank not in response.absent:
            raise UnsupportedError(f"rank {self.rank} has lost a tensor that it has submitted")
        only = mine[0] if len(mine) == 1 else None
        if only is not None and _is_in_place(only, engine):
            assert only.output is not None
            assert only.tensor is not None
            flat = only.output.view(-1)
            if only.output is not only.tensor:
                flat.copy_(only.tensor.reshape(-1))
        else:
            given = [_flat(entry, each, engine) for entry, each in zip(mine, response.requests, strict=True)]
            flat = torch.cat(given, out=self._fusion_buffer(given) if len(given) > 1 else None)
        reduce.scale(flat, request.prescale)
        if flat.numel():
            reduce.allreduce(engine, flat, request.op)
        reduce.scale(flat, request.postscale, engine.world_size if request.op == AVERAGE else 1)
        parts = torch.split(flat, [math.prod(each.shape) for each in response.requests])
        for entry, part, each in zip(mine, parts, response.requests, strict=True):
            if entry is not None:
                _give(entry, part.view(each.shape), alone=len(mine) == 1)

    def _fusion_buffer(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return memory for all of them, which is kept: new memory costs as much as what moves (page faults)."""
        numel, first = sum(tensor.numel() for tensor in tensors), tensors[0]
        key = first.dtype, first.device
        if numel * first.itemsize > self._fusion_bytes:  # a group, whatever its size
            return first.new_empty(numel)
        if key not in self._memory or self._memory[key].numel() < numel:
            self._memory.pop(key, None)
            self._memory[key] = first.new_empty(numel)
        return self._memory[key][:numel]

    def _allgather(self, engine: Engine, response: Response, own: Entry) -> None:
        assert own.tensor is not None
        rest = own.tensor.shape[1:]
        flat = reduce.as_transferable(engine, own.tensor.to(engine.device).reshape(-1))
        width = math.prod(rest) * _pieces(own.tensor, flat)
        received = engine.allgather(flat, [rows * width for rows in response.sizes])
        out = torch.cat(received).view(own.tensor.dtype)
        own.result = out.reshape(sum(response.sizes), *rest).to(own.tensor.device).data

    def _broadcast(self, engine: Engine, response: Response, own: Entry) -> None:
        assert own.tensor is not None
        flat = own.tensor.to(engine.device).clone().reshape(-1)
        if flat.numel():
            engine.broadcast(reduce.as_transferable(engine, flat), self._place(engine, response.requests[0].root))
        _give(own, flat.view(own.tensor.shape), alone=True)

    def _alltoall(self, engine: Engine, response: Response, own: Entry) -> None:
        assert own.tensor is not None
        rest = own.tensor.shape[1:]
        flat = reduce.as_transferable(engine, own.tensor.to(engine.device).reshape(-1))
        width = math.prod(rest) * _pieces(own.tensor, flat)
        rows = [splits[engine.rank] for splits in response.sizes]
        parts = torch.split(flat, [width * each for each in response.sizes[engine.rank]])
        received = engine.alltoall(parts, [width * each for each in rows])
        out = torch.cat(received).view(own.tensor.dtype).reshape(sum(rows), *rest)
        own.result = out.to(own.tensor.device).data, torch.tensor(rows, dtype=torch.int32)

    def _reducescatter(self, engine: Engine, response: Response, own: Entry) -> None:
        assert own.tensor is not None
        request, size = response.requests[0], engine.world_size
        count, more = divmod(own.tensor.shape[0], size)
        rows = [count + (rank < more) for rank in range(size)]
        flat = own.tensor.to(engine.device).clone().reshape(-1)
        reduce.scale(flat, request.prescale)
        width = math.prod(own.tensor.shape[1:])
        parts = [reduce.as_transferable(engine, part) for part in torch.split(flat, [width * each for each in rows])]
        received = engine.alltoall(parts, [parts[engine.rank].numel()] * size)
        mine = reduce.reduced([each.view(flat.dtype) for each in received], request.op)
        reduce.scale(mine, request.postscale, size if request.op == AVERAGE else 1)
        own.result = mine.reshape(rows[engine.rank], *own.tensor.shape[1:]).to(own.tensor.device).data

    def _place(self, engine: Engine, root: int) -> int:
        """Return where a rank of the job is in an engine, whose ranks count in the whole launch."""
        return engine.ranks.index(self._engines[0].ranks[root])


def _pieces(tensor: torch.Tensor, moved: torch.Tensor) -> int:
    """Return as how many elements of `moved` an element of `tensor` travels."""
    return tensor.element_size() // moved.element_size()


def _is_in_place(entry: Entry, engine: Engine) -> bool:
    output = entry.output
    return output is not None and output.is_contiguous() and output.device.type in engine.capabilities.devices


def _flat(entry: Entry | None, request: Request, engine: Engine) -> torch.Tensor:
    if entry is None:
        return torch.zeros(math.prod(request.shape), dtype=getattr(torch, request.dtype), device=engine.device)
    if entry.tensor is None:
        raise UnsupportedError(f"{request.verb} of {request.name!r} has no tensor")
    return entry.tensor.to(engine.device).reshape(-1)


def _give(entry: Entry, result: torch.Tensor, alone: bool) -> None:
    """Write a result where it belongs. A new tensor is no view, and has its memory for itself."""
    if entry.output is None:
        assert entry.tensor is not None
        found = result.to(entry.tensor.device)
        entry.result = found.data if alone else found.clone()
    else:
        if entry.output.data_ptr() != result.data_ptr() or entry.output.device != result.device:
            entry.output.copy_(result)
        entry.result = entry.output
