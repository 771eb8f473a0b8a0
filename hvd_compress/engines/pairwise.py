"""Collectives by messages between pairs of ranks, all under way at once: what an engine over a network is made of.

Every rank sends to its right neighbour first, then to the next, and receives in the same order, so that each line has
one sender and one receiver at a time for as long as ranks keep step. No round waits for another one, nothing is packed
into one buffer, and each message arrives where it is wanted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch

from hvd_compress.engines import layout
from hvd_compress.engines.base import Engine
from hvd_compress.engines.layout import AtMost

WHOLE_BYTES = 1 << 16
"""Up to this size a broadcast is one message to each rank."""


class PairwiseEngine(Engine):
    """An engine that can `_swap`: from it come all-to-all, all-gather, gather, reduce-scatter and a small allreduce."""

    @abstractmethod
    def _swap(
        self, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], most: Sequence[int] | None = None
    ) -> None:
        """Send `sent[r]` to each other rank r while `received[r]` comes from it. What is empty does not travel.

        Lengths must be true, but with `most`, where rank r has memory for most[r] elements of what it is sent: no part
        is empty then. A rank's part for itself is not looked at.
        """

    def partners(self) -> Iterator[tuple[int, int]]:
        """By round: from which rank this one receives, and to which it sends."""
        for distance in range(1, self.world_size):
            yield (self.rank - distance) % self.world_size, (self.rank + distance) % self.world_size

    def _alltoall(self, parts: Sequence[torch.Tensor], lengths: Sequence[int] | None) -> list[torch.Tensor]:
        lengths = self._swap_lengths([part.numel() for part in parts]) if lengths is None else list(lengths)
        received = list(torch.split(parts[0].new_empty(sum(lengths)), lengths))
        received[self.rank].copy_(parts[self.rank])
        self._swap(received, parts)
        return received

    def _swap_at_most(self, parts: Sequence[torch.Tensor], lengths: AtMost) -> list[torch.Tensor]:
        received = list(torch.split(parts[0].new_empty(sum(lengths.received)), list(lengths.received)))
        received[self.rank] = parts[self.rank]
        self._swap(received, parts, lengths.sent)
        return received

    def _allgather(self, tensor: torch.Tensor, lengths: Sequence[int] | None, algorithm: str) -> list[torch.Tensor]:
        lengths = self._exchange_lengths(tensor.numel()) if lengths is None else list(lengths)
        return self._allgather_into(tensor.new_empty(sum(lengths)), tensor, lengths, algorithm)

    def _allgather_into(
        self, out: torch.Tensor, tensor: torch.Tensor, lengths: Sequence[int], algorithm: str
    ) -> list[torch.Tensor]:
        received = list(torch.split(out, list(lengths)))
        received[self.rank].copy_(tensor)
        self._swap(received, [tensor] * self.world_size)
        return received

    def _gather(self, tensor: torch.Tensor, root: int, lengths: Sequence[int] | None) -> list[torch.Tensor] | None:
        nothing = tensor[:0]
        sent = [tensor if rank == root else nothing for rank in range(self.world_size)]
        lengths = self._exchange_lengths(tensor.numel()) if lengths is None else list(lengths)
        if self.rank != root:
            self._swap([nothing] * self.world_size, sent)
            return None
        received = list(torch.split(tensor.new_empty(sum(lengths)), lengths))
        received[root].copy_(tensor)
        self._swap(received, [nothing] * self.world_size)
        return received

    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each rank sums its shard itself, in rank order: as many bytes as a ring, in one round."""
        lengths = layout.shard_lengths(tensor.numel(), self.world_size)
        total, *others = self._alltoall(torch.split(tensor, lengths), [lengths[self.rank]] * self.world_size)
        for other in others:
            total += other
        return total

    def _allreduce_by_owners(self, tensor: torch.Tensor) -> None:
        """Sum in place: shards to their owners and back. As many bytes as a ring, in 2 rounds where that has 2(N-1)."""
        lengths = layout.shard_lengths(tensor.numel(), self.world_size)
        total = self._reduce_scatter(tensor)
        self._allgather_into(tensor, total, lengths, "auto")

    def _broadcast_by_pairs(self, tensor: torch.Tensor, root: int) -> None:
        """One message to each rank; of what is large a shard each, which all then gather: the root sends it once."""
        nothing = tensor[:0]
        is_sharded = self.world_size > 2 and tensor.nbytes > WHOLE_BYTES
        lengths = layout.shard_lengths(tensor.numel(), self.world_size)
        parts = list(torch.split(tensor, lengths)) if is_sharded else [tensor] * self.world_size
        if self.rank == root:
            self._swap([nothing] * self.world_size, parts)
        else:
            into = [parts[self.rank] if rank == root else nothing for rank in range(self.world_size)]
            self._swap(into, [nothing] * self.world_size)
        if is_sharded:
            self._swap(parts, [parts[self.rank]] * self.world_size)

    def _swap_lengths(self, sent: Sequence[int]) -> list[int]:
        """Tell each rank a number."""
        mine, theirs = (
            torch.tensor(sent, device=self.device),
            torch.empty(len(sent), dtype=torch.int64, device=self.device),
        )
        theirs[self.rank] = sent[self.rank]
        self._swap(torch.split(theirs, 1), torch.split(mine, 1))
        return theirs.tolist()

    def _exchange_lengths(self, numel: int) -> list[int]:
        return self._swap_lengths([numel] * self.world_size)
