"""What members send each other in an exchange: two all-to-alls a lane, whose lengths all know from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hvd_compress.embedding.cache import Cache
from hvd_compress.embedding.kernels import Lane, Lists
from hvd_compress.embedding.precision import Precision
from hvd_compress.embedding.residuals import Residuals
from hvd_compress.embedding.shard import Shard
from hvd_compress.engines.base import Engine
from hvd_compress.errors import PayloadError


class Outgoing:
    """The parts of an all-to-all while several embeddings add to them: blocks of float32 rows, by member."""

    def __init__(self, members: int) -> None:
        self._sent: list[list[torch.Tensor]] = [[] for _ in range(members)]
        self._lengths = [0] * members

    def send(self, rows: torch.Tensor, lengths: Sequence[int]) -> None:
        """Send the first rows of (n, width) to the first member, and so on."""
        for sent, block in zip(self._sent, torch.split(rows, list(lengths)), strict=True):
            sent.append(block.reshape(-1))

    def expect(self, lengths: Sequence[int], width: int) -> None:
        self._lengths = [so_far + more * width for so_far, more in zip(self._lengths, lengths, strict=True)]

    def exchange(self, engine: Engine) -> Incoming:
        parts = [torch.cat(blocks) if blocks else torch.empty(0) for blocks in self._sent]
        return Incoming(engine.alltoall(parts, self._lengths))


class Incoming:
    """What an all-to-all brought, to be taken in the order in which it was sent."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts, self._taken = parts, [0] * len(parts)

    def take(self, lengths: Sequence[int], width: int) -> list[torch.Tensor]:
        """Return blocks (n, width), by member."""
        blocks = []
        for member, length in enumerate(lengths):
            begin, self._taken[member] = self._taken[member], self._taken[member] + length * width
            blocks.append(self._parts[member][begin : self._taken[member]].view(length, width))
        return blocks

    def check_empty(self) -> None:
        for member, (part, taken) in enumerate(zip(self._parts, self._taken, strict=True)):
            if part.numel() != taken:
                raise PayloadError(f"rank {member} sent {part.numel()} numbers where {taken} were planned")


def send_updates(
    parts: Outgoing,
    lane: Lane,
    cache: Cache,
    gradients: torch.Tensor | None,
    slots: torch.Tensor,
    residuals: Residuals | None,
) -> None:
    """Send gradients (n, dim) of the rows in slots (n,), and records that are returned, to owners.

    `gradients` is None where all ranks only read, `residuals` where all gradients are exact.
    """
    if gradients is not None:
        parts.send(gradients.index_select(0, lane.gradients.all), lane.gradients.lengths)
        parts.expect(lane.gradients_from.lengths, cache.layout.dim)
        if residuals is not None:
            positions, lengths = lane.compressed
            words = residuals.encode(gradients.index_select(0, positions), slots.index_select(0, positions))
            parts.send(words, lengths)
            parts.expect(lane.compressed_from.lengths, words.shape[1])
    send_records(parts, lane.records, lane.records_from, cache)


def send_records(parts: Outgoing, slots: Lists, rows_from: Lists, cache: Cache) -> None:
    parts.send(cache.read(slots.all), slots.lengths)
    parts.expect(rows_from.lengths, cache.layout.record_width)


def take_updates(
    received: Incoming, lane: Lane, shard: Shard, trainers: int, step: int | None, precision: Precision
) -> torch.Tensor | None:
    """Update the shard by the mean over ranks: gradients are added in the order of ranks, from zero on. Return the
    records that were updated. `step` is None where all ranks only read."""
    updated = None
    if step is not None:
        mean = _take_sums(received, lane, shard.layout.dim, precision).div_(trainers)
        updated = shard.update(lane.updated, mean, step)
    take_records(received, lane.records_from, shard)
    return updated


def _take_sums(received: Incoming, lane: Lane, dim: int, precision: Precision) -> torch.Tensor:
    """Return the sums of gradients (n, dim) of the rows that are updated. A rank's gradient of a row is either exact or
    compressed."""
    sums = torch.zeros(lane.updated.numel(), dim)
    exact = _blocks(received, lane.gradients_from, dim)
    compressed = _blocks(received, lane.compressed_from, precision.words(dim))
    for (places, block), (compressed_places, words) in zip(exact, compressed, strict=True):
        sums.index_add_(0, places, block)
        if words.numel():
            sums.index_add_(0, compressed_places, precision.decode(words, dim))
    return sums


def take_records(received: Incoming, rows_from: Lists, shard: Shard) -> None:
    for rows, block in zip(rows_from.split(), received.take(rows_from.lengths, shard.layout.record_width), strict=True):
        shard.write(rows, block)


def send_rows(parts: Outgoing, lane: Lane, shard: Shard, precision: Precision) -> None:
    """Send rows to those that use them next: with states as they are, without them in the precision of what is
    synchronised. The debug mode's versions are exact."""
    layout = shard.layout
    records = shard.read(lane.rows_to.all)
    words = precision.encode(layout.row(records))
    parts.send(
        torch.cat([words, layout.versions(records).unsqueeze(1)], dim=1) if layout.debug else words,
        lane.rows_to.lengths,
    )
    parts.expect(lane.rows_into.lengths, precision.words(layout.dim) + layout.debug)
    parts.send(shard.read(lane.records_to.all), lane.records_to.lengths)
    parts.expect(lane.records_into.lengths, layout.record_width)


def take_rows(received: Incoming, lane: Lane, cache: Cache, precision: Precision) -> None:
    layout = cache.layout
    width = precision.words(layout.dim)
    for slots, block in _blocks(received, lane.rows_into, width + layout.debug):
        rows = precision.decode(block[:, :width], layout.dim)
        cache.write_rows(slots, torch.cat([rows, block[:, width:]], dim=1) if layout.debug else rows)
    for slots, block in _blocks(received, lane.records_into, layout.record_width):
        cache.write(slots, block)


def _blocks(received: Incoming, lists: Lists, width: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(lists.split(), received.take(lists.lengths, width), strict=True)
