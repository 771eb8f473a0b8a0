"""Bytes between ranks of torch.distributed: NCCL, MPI where torch was built with it, or gloo and sockets of our own."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from hvd_compress.checks import check_choice
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.engines.pairwise import PairwiseEngine
from hvd_compress.engines.process_groups import LATER_S, borrow
from hvd_compress.errors import ConfigError, UnsupportedError

_INTS = (torch.int32, torch.int64, torch.int8, torch.uint8)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SUM_DTYPES = {
    "gloo": (*_FLOATS, *_INTS),
    "nccl": (*_FLOATS, *_INTS),
    "mpi": (torch.float32, torch.float64, *_INTS),
}
BACKENDS = tuple(_SUM_DTYPES)
OWNERS_BYTES = 1 << 20
"""Up to this size an allreduce goes over our sockets to owners of shards and back: gloo's own ring waits 2(N-1) times
for the line. Above, that overlaps sums and messages (benchmarks/results/sockets.md)."""


class TorchEngine(PairwiseEngine):
    """Collectives over a process group of its own, of the ranks of `group` (default: all ranks of the job).

    No algorithm can be forced. With gloo all but large allreduces are messages between pairs of ranks, over sockets of
    our own: gloo's wait for the word that they may come, and for its threads. Ranks count by their numbers in the job.
    The constructor is collective over those ranks. The group is a new one, since the collectives of one group must be
    launched in the same order on all ranks, and DistributedDataParallel launches its own from another thread; or one
    that an earlier engine had, which was closed or dropped on all ranks.
    It lives until torch.distributed.destroy_process_group(): releases of torch give a new group the name of a destroyed
    one, under which the store still holds its addresses. torch counts groups in their names, so no other thread may
    make one meanwhile, and the ranks of a job should make as many engines.

    NCCL takes tensors on this rank's GPU alone; `control` then is an engine over gloo.

    Args:
        group: whose ranks; `ranks` (numbers in the job) can be given in its place.
        backend: "gloo", "nccl" or "mpi"; by default that of `group`, and of several NCCL where there is a GPU.
        device: this rank's GPU, for NCCL; by default the one that the group is bound to, or torch's current one.
        timeout_s: how long a collective may take, and process_groups.LATER_S more, by default torch's own limit.
        control: with NCCL, an engine over gloo and the same ranks that nobody else uses; by default a new one.
        thorough: rather collect garbage than make a group while others are in use.

    Raises ConfigError where torch.distributed is not initialised, this rank is not in the group, the backend is
    unknown, or some rank may open no more files; UnsupportedError for NCCL without a GPU, and for MPI over a part of
    the job or in a torch without it; CommunicationError where not all ranks come.
    """

    name = "torch"

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        ranks: Sequence[int] | None = None,
        backend: str | None = None,
        device: torch.device | None = None,
        timeout_s: float | None = None,
        control: TorchEngine | None = None,
        thorough: bool = False,
    ) -> None:
        super().__init__()
        members = list(ranks) if ranks is not None else group_ranks(group)
        self.backend = backend or backend_of(group)
        _require_backend(self.backend)
        if dist.get_rank() not in members:
            raise ConfigError(f"rank {dist.get_rank()} is not in the process group of ranks {members}")
        self.ranks = sorted(members)
        self.rank, self.world_size = self.ranks.index(dist.get_rank()), len(members)
        self.job_size = dist.get_world_size()
        self._timeout_s = timeout_s
        self._device = _gpu(device, group) if self.backend == "nccl" else torch.device("cpu")
        self.library = f"{_version(self.backend)} of torch {torch.__version__}"
        if self.backend == "mpi" and self.world_size < self.job_size:
            raise UnsupportedError("torch makes groups over MPI with all ranks of the job at once: use backend='gloo'")
        self._group, self._links = borrow(self, self.backend, timeout_s, self._device, thorough)
        self._limit_s = (timeout_s or default_pg_timeout.total_seconds()) + LATER_S
        self._control: TorchEngine | None = None
        if self.backend == "nccl":
            self._control = control or TorchEngine(ranks=self.ranks, backend="gloo", timeout_s=timeout_s)
            self._adopt(self._control)
        self.in_flight = {"gloo": 3, "nccl": 1}.get(self.backend, 2)
        self.capabilities = Capabilities(
            ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather"),
            (),
            _SUM_DTYPES[self.backend],
            devices=(self._device.type,),
            splits=self.backend != "mpi",
        )

    @property
    def control(self) -> Engine:
        return self._control or self

    def twin(self) -> Engine:
        """As Engine.twin(); UnsupportedError with NCCL: on each GPU two communicators may wait for the other's turn."""
        if self.backend == "nccl":
            raise UnsupportedError(
                "NCCL exchanges one bucket at a time, as communicators that run together can wait for each other for "
                "ever: unset HVD_COMPRESS_IN_FLIGHT"
            )
        return super().twin()

    @property
    def device(self) -> torch.device:
        return self._device

    def _split(self, members: Sequence[int]) -> TorchEngine:
        return TorchEngine(
            ranks=[self.ranks[rank] for rank in members],
            backend=self.backend,
            device=self._device,
            timeout_s=self._timeout_s,
        )

    def _leave_out(self) -> None:
        """Make as many groups as the others do: torch counts them in the names of later ones."""
        self._split([self.rank])

    def _no_split(self) -> str:
        return f"{super()._no_split()} with backend {self.backend!r}: use backend='gloo'"

    def _finish(self) -> None:
        """Wait for what NCCL has only launched so far, without keeping a core busy."""
        if self.backend == "nccl":
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            event.synchronize()

    @property
    def takes_shorter(self) -> bool:  # type: ignore[override]
        return self.backend == "gloo"

    def _swap(
        self, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], most: Sequence[int] | None = None
    ) -> None:
        if self.backend != "gloo":
            # The backend's own all-to-all posts the messages of all pairs at once.
            incoming = [_bytes_of(tensor) for tensor in received]
            outgoing = [_bytes_of(tensor) for tensor in sent]
            incoming[self.rank] = outgoing[self.rank] = outgoing[self.rank][:0]
            dist.all_to_all(incoming, outgoing, group=self._group)
            self._finish()
            return
        if self._links is not None:
            self._links.swap(sent, received, self._limit_s, most is None)

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        if self.backend == "gloo" and tensor.nbytes <= OWNERS_BYTES:
            self._allreduce_by_owners(tensor)
        elif tensor.numel():
            dist.all_reduce(tensor, group=self._group)
            self._finish()

    def _allgather_into(
        self, out: torch.Tensor, tensor: torch.Tensor, lengths: Sequence[int], algorithm: str
    ) -> list[torch.Tensor]:
        """torch's own all-gather takes equal lengths only."""
        if self.backend == "gloo" or len(set(lengths)) > 1:
            return super()._allgather_into(out, tensor, lengths, algorithm)
        parts = list(torch.split(out, list(lengths)))
        if tensor.numel():
            dist.all_gather([_bytes_of(part) for part in parts], _bytes_of(tensor), group=self._group)
            self._finish()
        return parts

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        if self.backend == "gloo":
            self._broadcast_by_pairs(tensor, root)
        elif tensor.numel():
            dist.broadcast(_bytes_of(tensor), self.ranks[root], group=self._group)
            self._finish()

    def abandon(self) -> None:
        self._spoil()
        fail_at_exit(lambda: None)


def group_ranks(group: dist.ProcessGroup | None) -> list[int]:
    """Return the numbers in the job of a group's ranks. Raises ConfigError where this rank is not one of them."""
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("call torch.distributed.init_process_group() before an engine is made")
    if group is not None and dist.get_rank(group) < 0:
        raise ConfigError(f"rank {dist.get_rank()} is not in this process group")
    return dist.get_process_group_ranks(_existing(group))


def backend_of(group: dist.ProcessGroup | None) -> str:
    """Return the backend of a group; of one for each kind of device, NCCL where torch sees a GPU, else gloo."""
    named = str(dist.get_backend(group))
    offered = re.split("[,:]", dist.get_backend_config(group) if named == "undefined" else named)
    if "nccl" in offered and (named == "nccl" or torch.cuda.is_available()):
        return "nccl"
    return "gloo" if "gloo" in offered else named


def obstacle_to(backend: str) -> str | None:
    """Say why this process cannot use a backend that is known, or return None."""
    if backend == "gloo":
        return None if dist.is_gloo_available() else "this torch was built without gloo"
    if backend == "mpi":
        return None if dist.is_mpi_available() else "this torch was built without MPI: use backend='gloo'"
    if not dist.is_nccl_available():
        return "this torch was built without NCCL: use backend='gloo'"
    return None if torch.cuda.is_available() else "backend 'nccl' needs a GPU and torch sees none: use backend='gloo'"


def _require_backend(backend: str) -> None:
    check_choice("backend", backend, BACKENDS, " to torch.distributed")
    obstacle = obstacle_to(backend)
    if obstacle is not None:
        raise UnsupportedError(f"rank {dist.get_rank()}: {obstacle}")


def _existing(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world if group is None else group


def _gpu(device: torch.device | None, group: dist.ProcessGroup | None) -> torch.device:
    if device is not None and device.index is not None:
        return device
    bound = _existing(group).bound_device_id
    return bound if bound is not None else torch.device("cuda", torch.cuda.current_device())


def _version(backend: str) -> str:
    if backend == "nccl":
        return f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"  # type: ignore[no-untyped-call]
    return {"gloo": "sockets and Gloo", "mpi": "MPI"}[backend]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """What is not summed moves as bytes, so that the backend need not know the dtype."""
    return tensor.view(torch.uint8)
