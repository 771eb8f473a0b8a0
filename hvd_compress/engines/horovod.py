"""Bytes over the collectives of Horovod's API, whatever it was built with. Each costs about a HOROVOD_CYCLE_TIME more.

Where Horovod is not installed, what stands for it is the runtime of this package.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.engines import limits
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.engines.names import ALGORITHMS, ALLGATHERS, BROADCASTS
from hvd_compress.engines.pool import Pool
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.extras import needed

_SUM_DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64)
_MOVE_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What is not summed moves as integers of its size, since Horovod knows fewer dtypes than torch (no bfloat16)."""

_pools: dict[tuple[int, tuple[int, ...]], Pool[str]] = {}
"""By process set, what the names of an engine's collectives begin with: the same on all members, and unique. Those of
ended engines are used again, as Horovod remembers names.

By its ranks, too: Horovod gives the number of a set that was removed to the next one, which may have other members.
"""


def forget_engines() -> None:
    """Ranks have met anew, and some of them are new: engines are counted from the first again."""
    _pools.clear()


class HorovodEngine(Engine):
    """Horovod's collectives over a process set (default: all ranks), after hvd.init().

    Every member makes its engines in the same order. No algorithm can be forced over several ranks, and there is
    no gather. Allreduce and broadcast take tensors of any size, the other verbs up to 2^31 - 1 elements over all ranks
    (UnsupportedError above).

    Raises UsageError where Horovod is not initialised, ConfigError where this rank is not in the process set,
    MissingPackageError without Horovod.

    Args:
        api: a module that has the names of horovod.torch, by default that itself.

    Attributes:
        is_horovods: whether Horovod itself moves the bytes.
    """

    name = "Horovod"

    def __init__(self, process_set: Any = None, api: Any = None) -> None:
        super().__init__()
        hvd = imported() if api is None else api
        if not hvd.is_initialized():
            raise UsageError("call hvd.init() before an engine is made")
        self._hvd = hvd
        self.is_horovods = is_horovod(hvd)
        if self.is_horovods:
            self.library = f"Horovod {importlib.metadata.version('horovod')}"
        else:
            self.name, self.library = "runtime", f"the runtime of hvd_compress on torch {torch.__version__}"
        self._set = hvd.global_process_set if process_set is None else process_set
        self.ranks = process_set_ranks(self._set, hvd)
        if hvd.rank() not in self.ranks:
            raise ConfigError(f"rank {hvd.rank()} is not in the process set of ranks {self.ranks}")
        self.rank, self.world_size, self.job_size = self.ranks.index(hvd.rank()), len(self.ranks), hvd.size()
        verbs = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter")
        # Built with any GPU operation, it takes tensors of GPUs in all of them, and brings those of the others itself.
        devices = ("cpu", "cuda") if hvd.cuda_built() else ("cpu",)
        # With one rank nothing is sent, by whatever algorithm: a script that names one runs without a launcher, too.
        algorithms, broadcasts, allgathers = (
            (ALGORITHMS, BROADCASTS, ALLGATHERS) if self.world_size == 1 else ((), (), ())
        )
        self.capabilities = Capabilities(verbs, algorithms, _SUM_DTYPES, broadcasts, allgathers, devices)
        number = self._set.process_set_id
        pool = _pools.setdefault((number, tuple(self.ranks)), Pool())
        self._prefix = f"hvd_compress.engines.{number}"
        meet = self.allgather_json if pool.made else lambda offer: [offer]
        self._prefix = pool.lend(self, meet, lambda: f"hvd_compress.engine.{number}.{pool.made}")

    def _wait(self, verb: str, start: Any, *arguments: Any, **options: Any) -> Any:
        """Start one of Horovod's asynchronous collectives under the verb's own name, and wait for its result."""
        name = f"{self._prefix}.{verb}"
        return self._hvd.synchronize(start(*arguments, name=name, process_set=self._set, **options))

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        for part in torch.split(tensor, limits.MAX_COUNT) if tensor.numel() else ():
            self._wait("allreduce", self._hvd.allreduce_async_, part, op=self._hvd.Sum)

    def _allgather(self, tensor: torch.Tensor, lengths: Sequence[int] | None, algorithm: str) -> list[torch.Tensor]:
        if lengths is None:
            mine = torch.tensor([tensor.numel()])
            lengths = self._wait("allgather_lengths", self._hvd.allgather_async, mine).tolist()
        limits.require_countable(sum(lengths))
        if not sum(lengths):
            return [tensor.clone() for _ in lengths]
        gathered = self._wait("allgather", self._hvd.allgather_async, _movable(tensor))
        return list(torch.split(gathered.view(tensor.dtype), list(lengths)))

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        for part in torch.split(tensor, limits.MAX_COUNT) if tensor.numel() else ():
            self._wait("broadcast", self._hvd.broadcast_async_, _movable(part), self.ranks[root])

    def _alltoall(self, parts: Sequence[torch.Tensor], lengths: Sequence[int] | None) -> list[torch.Tensor]:
        outgoing = torch.cat(tuple(parts))
        limits.require_countable(outgoing.numel())
        splits = torch.tensor([part.numel() for part in parts], dtype=torch.int32)
        incoming, received = self._wait("alltoall", self._hvd.alltoall_async, _movable(outgoing), splits)
        return list(torch.split(incoming.view(outgoing.dtype), received.tolist()))

    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Horovod shards as `layout.shard` does: the first ranks get one element more."""
        limits.require_countable(tensor.numel())
        if not tensor.numel():
            return tensor.clone()
        shard: torch.Tensor = self._wait("reduce_scatter", self._hvd.reducescatter_async, tensor, op=self._hvd.Sum)
        return shard

    def _gather(self, tensor: torch.Tensor, root: int, lengths: Sequence[int] | None) -> list[torch.Tensor] | None:
        raise AssertionError("capabilities leave gather out")

    def _no_split(self) -> str:
        return f"the {self.name} engine cannot be split into smaller groups: say .by(engine='mpi') of the compression"

    def abandon(self) -> None:
        self._spoil()
        fail_at_exit(lambda: None)


def _movable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_MOVE_DTYPES[tensor.element_size()])


def process_set_ranks(process_set: Any, api: Any) -> list[int]:
    """Return the global ranks in a process set, in its own rank order."""
    if process_set.process_set_id is None:
        raise ConfigError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    return sorted(process_set.ranks) if process_set.ranks is not None else list(range(api.size()))


def is_horovod(api: Any) -> bool:
    """Whether a module with the names of horovod.torch is Horovod's own."""
    return bool(api.__name__.partition(".")[0] == "horovod")


def imported() -> Any:
    """Return horovod.torch. Raises MissingPackageError."""
    with needed("horovod", "engine 'horovod'"):
        import horovod.torch
    return horovod.torch
