"""Ranks gather parameters alike: compared in the job's store, as there is no collective before the first gather."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from torch import distributed as dist

from hvd_compress.engines.arrivals import describe
from hvd_compress.errors import CommunicationError, ConfigError

_made: Counter[tuple[int, ...]] = Counter()
"""By ranks, how often they have compared: all compress their models in one order."""


class GatherAgreement:
    """Tells other ranks how this one gathers parameters, and compares before the first gather.

    A few requests to the store's host a rank, whatever the number of ranks.
    """

    def __init__(self, words: str, names: Sequence[str], group: dist.ProcessGroup, timeout_s: float) -> None:
        """Tell the ranks of a group. Waits for none.

        Args:
            words: how this rank gathers.
            names: of the parameters, trained or not.
            timeout_s: how long check() waits.
        """
        self._timeout_s, self._ranks = timeout_s, dist.get_process_group_ranks(group)
        _made[tuple(self._ranks)] += 1
        name = f"hvd_compress_gathers/{self._ranks}/{_made[tuple(self._ranks)]}"
        digest = zlib.crc32(" ".join(sorted(names)).encode())
        words = f"{words}, of a model with {len(names)} parameters ({digest:08x})"
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
        self._same = f"as/{zlib.crc32(words.encode())}"
        self._is_checked = False
        self._store.set(self._key(dist.get_rank()), words)
        self._store.add(self._same, 1)
        if self._store.add("all", 1) == len(self._ranks):
            self._store.set("complete", "1")

    def check(self) -> None:
        """Compare, once. All ranks call it.

        Raises:
            CommunicationError: ranks have not called compress() within the timeout; it names them.
            ConfigError: they gather otherwise; on all ranks alike.
        """
        if self._is_checked:
            return
        try:
            self._store.wait(["complete"], timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            missing = [rank for rank in self._ranks if not self._store.check([self._key(rank)])]
            raise CommunicationError(
                f"ranks have not all called compress() within {self._timeout_s:g} s (HVD_COMPRESS_TIMEOUT_S): "
                f"{describe(missing, '')} there. Call it on all ranks, before the first forward pass"
            ) from error
        if self._store.add(self._same, 0) != len(self._ranks):
            raise ConfigError(
                f"ranks gather parameters in different ways, or of different models: {self._differences()}; pass the "
                "same to compress() on all ranks, for the same models in the same order"
            )
        self._is_checked = True

    def _differences(self) -> str:
        ways: dict[str, list[int]] = {}
        for rank in self._ranks:
            ways.setdefault(self._store.get(self._key(rank)).decode(), []).append(rank)
        return ", ".join(f"{words} on {_numbers(ranks)}" for words, ranks in ways.items())

    def _key(self, rank: int) -> str:
        return f"rank/{rank}"


def _numbers(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
