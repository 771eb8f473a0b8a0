"""Arrivals over the key-value store in which the ranks of a torch.distributed job have met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist

from hvd_compress.engines.arrivals import GroupArrivals
from hvd_compress.engines.system_limits import naming_limits
from hvd_compress.engines.torch_distributed import group_ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class StoreArrivals(GroupArrivals):
    """Arrivals of the ranks `ranks` (numbers in the job), this one being `own`, told in `store`.

    One request to the store's host when this rank has waited for a while; two a rank for the message of a timeout. None
    of them waits for a key that is missing.
    """

    def __init__(self, store: Store, ranks: Sequence[int], own: int) -> None:
        super().__init__(ranks, own)
        self._store = dist.PrefixStore("hvd_compress", store)  # type: ignore[attr-defined]

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None, ranks: Sequence[int] | None = None) -> StoreArrivals:
        """Return those of a process group (default: all ranks), over a connection of their own. Local.

        `ranks` (numbers in the job) can be given in its place.

        Raises ConfigError where torch.distributed is not initialised or this rank is not in the group,
        CommunicationError where it may open no more files.
        """
        ranks = group_ranks(group) if ranks is None else ranks
        store = dist.distributed_c10d._get_default_store()
        # Threads that share a connection wait for each other: one that makes a group may wait there for a missing rank.
        clone = getattr(store, "clone", None)  # later releases have it
        with naming_limits("a connection to the job's store"):
            return cls(store if clone is None else clone(), ranks, dist.get_rank())

    def announce(self, wait: int) -> None:
        self._store.set(self._key(self.own), str(wait))

    def announced(self, rank: int) -> int:
        key = self._key(rank)
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def _key(self, rank: int) -> str:
        return f"{self.group}/{rank}"
