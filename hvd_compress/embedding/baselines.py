"""What others do with embedding tables, behind the same modules: each takes the place of Lookahead.

All but Resident give the bits of a synchronous table, too. Communication is on the critical path throughout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hvd_compress.embedding.means import mean_of_one, sums_of_rows
from hvd_compress.embedding.modules import CachedEmbedding, Used
from hvd_compress.embedding.shard import Shard
from hvd_compress.embedding.sources import Key, Sources
from hvd_compress.engines.base import Engine


class Baseline(ABC):
    """Wraps a loader as Lookahead does. A step ends where the next batch is asked for."""

    def __init__(
        self,
        loader: Iterable[Any],
        embeddings: Mapping[Key, CachedEmbedding],
        engine: Engine,
    ) -> None:
        self._loader, self._sources, self.engine = loader, Sources(embeddings), engine
        self.modules = self._sources.modules

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            where = f"rank {self.engine.rank}, batch {number}"
            ids = [self._sources.rows(batch, at, where) for at in range(len(self.modules))]
            used = [Used(*each, module.layout.untrained) for each, module in zip(ids, self.modules, strict=True)]
            for module, each, values in zip(self.modules, used, self.fetch([each.rows for each in used]), strict=True):
                each.values = values.requires_grad_()
                module.use(each)
            yield batch
            gradients = [_gradient(each) for each in used]
            self.update([each.rows for each in used], gradients)
            for module in self.modules:
                module.use(None)
                module.steps += 1

    @abstractmethod
    def fetch(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values (u, dim) of each embedding's rows."""

    @abstractmethod
    def update(self, rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Apply the mean over ranks of the gradients (u, dim) of each embedding's rows."""


def _gradient(used: Used) -> torch.Tensor:
    assert used.values is not None
    return torch.zeros_like(used.values) if used.gradient is None else used.gradient


class RowSharded(Baseline):
    """Each rank owns a part of the rows, and steps fetch them by all-to-alls, as TorchRec's row-wise sharding does: ids
    to owners, rows back, and gradients to owners behind the backward pass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for module in self.modules:
            module.shard = module.shard or Shard(module.layout, self.engine.rank, self.engine.world_size)
        self._requested: list[list[torch.Tensor]] = []
        self._places: list[list[torch.Tensor]] = []

    def fetch(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._requested, self._places, found = [], [], []
        for module, mine in zip(self.modules, rows, strict=True):
            shard, world = module.own_shard, self.engine.world_size
            places = [(mine % world == owner).nonzero().flatten() for owner in range(world)]
            requested = self.engine.alltoall([mine[at] // world for at in places])
            self._requested.append(requested)
            self._places.append(places)
            width = module.layout.dim
            answers = self.engine.alltoall(
                [module.layout.row(shard.read(of)).reshape(-1) for of in requested],
                [at.numel() * width for at in places],
            )
            values = torch.empty(mine.numel(), width)
            for at, answer in zip(places, answers, strict=True):
                values[at] = answer.view(-1, width)
            found.append(values)
        return found

    def update(self, rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        for module, mine, requested, places in zip(self.modules, gradients, self._requested, self._places, strict=True):
            width = module.layout.dim
            blocks = self.engine.alltoall(
                [mine[at].reshape(-1) for at in places], [of.numel() * width for of in requested]
            )
            apply_mean(module.own_shard, requested, [block.view(-1, width) for block in blocks], module.steps)


class ReplicatedTable(Baseline):
    """Each rank has all rows, and steps all-gather ids and gradients, as Horovod does with sparse gradients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for module in self.modules:
            module.shard = module.shard or Shard(module.layout, 0, 1)

    def fetch(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pairs = zip(self.modules, rows, strict=True)
        return [module.layout.row(module.own_shard.read(mine)).clone() for module, mine in pairs]

    def update(self, rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        for module, mine, own in zip(self.modules, rows, gradients, strict=True):
            width = module.layout.dim
            ids = self.engine.allgather(mine)
            blocks = self.engine.allgather(own.reshape(-1), [each.numel() * width for each in ids])
            apply_mean(module.own_shard, ids, [block.view(-1, width) for block in blocks], module.steps)


class Resident(ReplicatedTable):
    """Each rank has the rows that it uses, and nothing is synchronised: no embedding is faster, and none as wrong."""

    def update(self, rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        for module, mine, own in zip(self.modules, rows, gradients, strict=True):
            module.own_shard.update(mine, mean_of_one(own, self.engine.world_size), module.steps)


def apply_mean(shard: Shard, rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], step: int) -> None:
    """Update rows of the shard by the mean of gradients (n, dim), whose rows each rank tells: added in rank order."""
    distinct, sums = sums_of_rows(rows, gradients)
    shard.update(distinct, sums.div_(len(rows)), step)
