"""The interface behind which bytes move: blocking collectives on flat tensors, called from one thread."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.cost import wire
from hvd_compress.engines.names import ALGORITHMS, ALLGATHERS, BROADCASTS, KNOWN
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError

__all__ = ["ALGORITHMS", "ALLGATHERS", "BROADCASTS", "ENGINES", "Call", "Capabilities", "Engine"]

ENGINES = ("auto", "mpi", "horovod")
"""What a user may ask for by name."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do.

    `algorithms`, `broadcasts` and `allgathers` are what it can force of an allreduce, a broadcast and an all-gather,
    "auto" aside; `devices` the kinds of devices whose memory it takes.
    """

    verbs: tuple[str, ...]
    algorithms: tuple[str, ...]
    sum_dtypes: tuple[torch.dtype, ...]
    broadcasts: tuple[str, ...] = ()
    allgathers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)

    def forcible(self, verb: str) -> tuple[str, ...]:
        """Return the algorithms of `verb` that can be forced; none for verbs that have only one way."""
        return {"allreduce": self.algorithms, "broadcast": self.broadcasts, "allgather": self.allgathers}.get(verb, ())


@dataclass(frozen=True)
class Call:
    """One finished collective: what it was, how many bytes a rank sent on average, and how long it took here.

    `tensor_bytes` is the size of this rank's tensor, by which calibrated curves are looked up; `started_s` is by
    time.perf_counter().
    """

    verb: str
    algorithm: str
    sent_bytes: int
    seconds: float
    tensor_bytes: int = 0
    started_s: float = 0.0


class Engine(ABC):
    """Collectives over a fixed group of ranks.

    All verbs block, take contiguous one-dimensional tensors (on the CPU; some engines take others, see capabilities),
    and must be called by every rank of the group in the same order, from one thread. Errors of the transport rise as
    they are; the pipeline adds rank, bucket and step. `library` names what moves the bytes, with its version. `calls`
    collects one Call a collective until somebody takes them with `take_calls`; `running` is whether one runs now;
    `pending` says in words which, for the message of a timeout, and `place` for what rank, step and bucket; `lost` why
    none can run any more, if so.
    """

    name: str
    library: str = ""
    rank: int
    world_size: int
    capabilities: Capabilities

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.pending, self.place = "before the first collective", ""
        self.running = False
        self.lost: str | None = None

    def require(self, verb: str, algorithm: str = "auto", dtype: torch.dtype | None = None) -> None:
        """Raise UnsupportedError, or ConfigError for an unknown name, unless this engine can do what is asked."""
        known = KNOWN.get(verb, ())
        if algorithm != "auto" and algorithm not in known:
            raise ConfigError(f"unknown algorithm {algorithm!r} of {verb}; known are {', '.join(('auto', *known))}")
        can = self.capabilities
        if verb not in can.verbs:
            raise UnsupportedError(f"the {self.name} engine has no {verb}; it has {', '.join(can.verbs)}")
        if algorithm != "auto" and algorithm not in can.forcible(verb):
            offered = ", ".join(("auto", *can.forcible(verb)))
            raise UnsupportedError(
                f"the {self.name} engine cannot force algorithm {algorithm!r} of {verb} over {self.world_size} ranks "
                f"here; it offers {offered}. Leave algorithm at 'auto', or launch the job with mpirun, and "
                "pass engine='mpi' to the compression"
            )
        if dtype is not None and dtype not in can.sum_dtypes:
            raise UnsupportedError(f"the {self.name} engine cannot sum {dtype}")

    def allreduce(self, tensor: torch.Tensor, algorithm: str = "auto") -> None:
        """Replace `tensor` by the sum over all ranks, bit-identical on all of them."""
        self.require("allreduce", algorithm, tensor.dtype)
        self._check_layout(tensor)
        sent = wire.allreduce(_bytes(tensor), self.world_size, algorithm)
        with self._timed("allreduce", algorithm, sent, _bytes(tensor)):
            self._allreduce(tensor, algorithm)

    def allgather(
        self,
        tensor: torch.Tensor,
        lengths: Sequence[int] | None = None,
        algorithm: str = "auto",
        out: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Return every rank's tensor, in rank order. `algorithm` is "auto" or one of ALLGATHERS.

        Lengths may differ and may be zero. `lengths` are the numel of all ranks where the caller knows them, which
        saves the round in which they are exchanged; they must be the same on all ranks and true. An algorithm can be
        forced where they are given and all equal (ConfigError else): libraries have a choice for equal parts only.
        With `out`, (sum(lengths),) of the same dtype, what is returned lies there; it must not overlap `tensor`.
        """
        self.require("allgather", algorithm)
        self._check_layout(tensor)
        if lengths is not None and (len(lengths) != self.world_size or lengths[self.rank] != tensor.numel()):
            raise ConfigError(f"lengths {list(lengths)} do not fit {tensor.numel()} elements on rank {self.rank}")
        if algorithm != "auto" and (lengths is None or len(set(lengths)) > 1):
            raise ConfigError(
                f"algorithm {algorithm!r} of an allgather needs equal lengths, given by the caller, not {lengths}: "
                "leave it at 'auto'"
            )
        if out is not None:
            self._check_layout(out)
            if lengths is None or out.numel() != sum(lengths) or out.dtype != tensor.dtype:
                raise ConfigError(f"out of {out.numel()} x {out.dtype} does not fit lengths {lengths} x {tensor.dtype}")
        with self._timed("allgather", algorithm, wire.allgather(_bytes(tensor), self.world_size), _bytes(tensor)):
            if out is not None and lengths is not None:
                return self._allgather_into(out, tensor, lengths, algorithm)
            return self._allgather(tensor, lengths, algorithm)

    def broadcast(self, tensor: torch.Tensor, root: int, algorithm: str = "auto") -> None:
        """Replace `tensor` by that of rank `root`. All ranks pass the same dtype and numel.

        `algorithm` is "auto" or one of BROADCASTS; the names of pipelines carry the size of their segments.
        """
        self.require("broadcast", algorithm)
        self._check_layout(tensor)
        self._check_root(root)
        sent = wire.broadcast(_bytes(tensor), self.world_size, algorithm)
        with self._timed("broadcast", algorithm, sent, _bytes(tensor)):
            self._broadcast(tensor, root, algorithm)

    def alltoall(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Send `parts[r]` to rank r; return what each rank sent here, in rank order. One dtype, any lengths."""
        self.require("alltoall")
        if len(parts) != self.world_size or len({part.dtype for part in parts}) != 1:
            raise ConfigError(f"alltoall takes {self.world_size} parts of one dtype, not {[p.dtype for p in parts]}")
        for part in parts:
            self._check_layout(part)
        total = sum(_bytes(part) for part in parts)
        with self._timed("alltoall", "auto", total - _bytes(parts[self.rank]), total):
            return self._alltoall(parts)

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of the sum over all ranks; shard r is `layout.shard(numel, world_size, r)`."""
        self.require("reduce_scatter", dtype=tensor.dtype)
        self._check_layout(tensor)
        sent = wire.reduce_scatter(_bytes(tensor), self.world_size)
        with self._timed("reduce_scatter", "auto", sent, _bytes(tensor)):
            return self._reduce_scatter(tensor)

    def gather(self, tensor: torch.Tensor, root: int) -> list[torch.Tensor] | None:
        """Return every rank's tensor on rank `root`, None elsewhere. Lengths may differ."""
        self.require("gather")
        self._check_layout(tensor)
        self._check_root(root)
        with self._timed("gather", "auto", wire.gather(_bytes(tensor), self.world_size), _bytes(tensor)):
            return self._gather(tensor, root)

    def _check_layout(self, tensor: torch.Tensor) -> None:
        """Engines hand the bare memory to their transport, so anything but a flat tensor would move wrong bytes."""
        if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.device.type not in self.capabilities.devices:
            shape, known = tuple(tensor.shape), " or ".join(self.capabilities.devices)
            raise ConfigError(
                f"the {self.name} engine takes contiguous one-dimensional tensors on {known}, not {shape} on "
                f"{tensor.device}"
            )

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.world_size:
            raise ConfigError(f"root {root} is not one of the {self.world_size} ranks")

    def take_calls(self) -> list[Call]:
        """Return the calls finished since the last time, and forget them."""
        calls, self.calls = self.calls, []
        return calls

    def note(self, call: Call) -> None:
        """A collective has ended without an error."""
        self.calls.append(call)

    @contextmanager
    def aside(self) -> Iterator[list[Call]]:
        """What runs within belongs to no step: its calls go to the list that this yields, and not to `calls`."""
        of_steps, self.calls = self.calls, []
        try:
            yield self.calls
        finally:
            self.calls = of_steps

    def allgather_json(self, value: Any) -> list[Any]:
        """Return what every rank passed, in rank order: anything that JSON knows. It belongs to no step."""
        raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with self.aside():
            return [json.loads(bytes(answer.cpu().numpy())) for answer in self.allgather(raw)]

    def _timed(self, verb: str, algorithm: str, sent_bytes: int, size_bytes: int) -> _Timed:
        return _Timed(self, verb, algorithm, sent_bytes, size_bytes)

    @abstractmethod
    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None: ...

    @abstractmethod
    def _allgather(self, tensor: torch.Tensor, lengths: Sequence[int] | None, algorithm: str) -> list[torch.Tensor]: ...

    def _allgather_into(
        self, out: torch.Tensor, tensor: torch.Tensor, lengths: Sequence[int], algorithm: str
    ) -> list[torch.Tensor]:
        """For an engine that chooses itself where it receives."""
        parts = list(torch.split(out, list(lengths)))
        for part, received in zip(parts, self._allgather(tensor, lengths, algorithm), strict=True):
            part.copy_(received)
        return parts

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None: ...

    @abstractmethod
    def _alltoall(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...

    @abstractmethod
    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _gather(self, tensor: torch.Tensor, root: int) -> list[torch.Tensor] | None: ...

    @abstractmethod
    def abandon(self) -> None:
        """Called once after a failure that may have left a collective unfinished: make sure that the process can end.

        Without it an exit could wait for ever for ranks that are gone.
        """

    def close(self) -> None:  # noqa: B027 (most engines hold nothing)
        """Release what the engine holds. Every rank calls it, when no collective is running."""


class _Timed:
    """Notes what runs, and appends a Call when it finished without an error."""

    def __init__(self, engine: Engine, verb: str, algorithm: str, sent_bytes: int, size_bytes: int) -> None:
        self._engine, self._verb, self._algorithm, self._sent_bytes = engine, verb, algorithm, sent_bytes
        self._size_bytes = size_bytes
        self._words = f"{verb} ({algorithm}) of {size_bytes} bytes"

    def __enter__(self) -> None:
        self._engine.pending = self._words
        self._engine.running = True  # before `lost` is read: whoever sets it looks at this afterwards
        if self._engine.lost is not None:
            self._engine.running = False
            raise CommunicationError(self._engine.lost)
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._engine.running = False
        if kind is None:
            seconds = time.perf_counter() - self._start
            call = Call(self._verb, self._algorithm, self._sent_bytes, seconds, self._size_bytes, self._start)
            self._engine.note(call)
            self._engine.pending = f"after {self._words}"


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
