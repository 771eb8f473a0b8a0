"""Bytes over torch.distributed's Gloo: where there is neither MPI nor Horovod."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from hvd_compress.engines import layout
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.errors import ConfigError

_SUM_DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.int8, torch.uint8)


class GlooEngine(Engine):
    """Collectives over a process group of torch.distributed with the backend gloo (default: all ranks).

    No algorithm can be forced, and there is no gather. Every member makes its engines in the same order. One group
    carries one engine, since the order of its collectives is that of their launches.

    Raises ConfigError where torch.distributed is not initialised, this rank is not in the group, or the group has
    another backend.
    """

    name = "Gloo"

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.library = f"Gloo of torch {torch.__version__}"
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError("call torch.distributed.init_process_group('gloo') before an engine is made")
        world = dist.group.WORLD
        assert world is not None
        self._group = world if group is None else group
        self.rank, self.world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        if self.rank < 0:
            raise ConfigError(f"rank {dist.get_rank()} is not in this process group")
        backend = dist.get_backend(self._group)
        if backend != "gloo":
            raise ConfigError(f"this process group uses {backend}: make one with dist.new_group(backend='gloo')")
        verbs = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter")
        self.capabilities = Capabilities(verbs, (), _SUM_DTYPES)

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        if tensor.numel():
            dist.all_reduce(tensor, group=self._group)

    def _allgather(self, tensor: torch.Tensor, lengths: Sequence[int] | None, algorithm: str) -> list[torch.Tensor]:
        lengths = self._exchange_lengths(tensor.numel()) if lengths is None else lengths
        return self._allgather_into(tensor.new_empty(sum(lengths)), tensor, lengths, algorithm)

    def _allgather_into(
        self, out: torch.Tensor, tensor: torch.Tensor, lengths: Sequence[int], algorithm: str
    ) -> list[torch.Tensor]:
        parts = list(torch.split(out, list(lengths)))
        if len(set(lengths)) == 1:
            if tensor.numel():
                dist.all_gather([_bytes_of(part) for part in parts], _bytes_of(tensor), group=self._group)
            return parts
        for source, part in enumerate(parts):  # Gloo gathers equal lengths only
            if source == self.rank:
                part.copy_(tensor)
            self._broadcast(part, source, algorithm)
        return parts

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        if tensor.numel():
            dist.broadcast(_bytes_of(tensor), dist.get_global_rank(self._group, root), group=self._group)

    def _alltoall(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        sent = torch.tensor([part.numel() for part in parts])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        outgoing, lengths = torch.cat(tuple(parts)), received.tolist()
        incoming = outgoing.new_empty(sum(lengths))
        size = outgoing.element_size()
        dist.all_to_all_single(
            _bytes_of(incoming),
            _bytes_of(outgoing),
            [size * length for length in lengths],
            [size * length for length in sent.tolist()],
            group=self._group,
        )
        return list(torch.split(incoming, lengths))

    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each rank sums its shard itself, in rank order: as many bytes as a ring."""
        shards = [tensor[layout.shard(tensor.numel(), self.world_size, rank)] for rank in range(self.world_size)]
        received = self._alltoall(shards)
        for part in received[1:]:
            received[0] += part
        return received[0]

    def _gather(self, tensor: torch.Tensor, root: int) -> list[torch.Tensor] | None:
        raise AssertionError("capabilities leave gather out")

    def _exchange_lengths(self, numel: int) -> list[int]:
        lengths = torch.empty(self.world_size, dtype=torch.int64)
        dist.all_gather(list(torch.split(lengths, 1)), torch.tensor([numel]), group=self._group)
        return lengths.tolist()

    def abandon(self) -> None:
        fail_at_exit(lambda: None)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """What is not summed moves as bytes, so that Gloo need not know the dtype."""
    return tensor.view(torch.uint8)
