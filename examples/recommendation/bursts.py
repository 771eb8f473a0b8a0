"""Skew in time: rows that several examples of a batch use, and most of them no example of the next batch."""

from __future__ import annotations

import numpy as np

from hvd_compress.errors import ConfigError
from recommendation.skew import Floats, Head, Integers
from recommendation.splitmix import GAMMA, mix

ROWS_A_SLOT = 4
"""At least. A table with fewer rows behind its head has fewer slots, and its head takes the draws of the others."""


class Bursts:
    """The `head` most popular rows take a `share` of the draws, by Zipf's distribution. The others are uniform over a
    pool of `slots`, which each batch fills with other rows.

    Slot j of n has m = (j / n)^-decay rows of its own, or as many as the table can give it. Each batch has one of them
    there, by a hash. So a row of this slot comes back after m batches on average. The slots differ in m by orders of
    magnitude: the last ones hardly change, the first ones have a new row in nearly every batch. All ranks find the same
    rows in the pool, and no batch needs those before it.
    """

    def __init__(self, head: int, share: float, alpha: float, slots: int, decay: float) -> None:
        """Raises ConfigError for a head that Head refuses, no slots, or a decay that is not positive."""
        Head(head, share, alpha)
        if slots < 1 or not decay > 0:
            raise ConfigError(
                f"a pool of {slots} slots with the decay {decay} needs 1 slot or more, and a positive decay"
            )
        self.head, self.share, self.alpha, self.slots, self.decay = head, share, alpha, slots, decay

    def draw(self, uniform: Floats, rows: int, pool_key: int = 0) -> Integers:
        head = min(rows, self.head)
        slots = min(self.slots, (rows - head) // ROWS_A_SLOT)
        share = 1 - (1 - self.share) * slots / self.slots
        ranks = Head(head, share, self.alpha).draw(uniform, head + slots)
        if slots:
            tail = ranks >= head
            ranks[tail] += slots * self._turns(ranks[tail] - head, slots, (rows - head) // slots, pool_key)
        return ranks

    def _turns(self, chosen: Integers, slots: int, most: int, pool_key: int) -> Integers:
        """Return which of its rows, from 0, each of the chosen slots has in this batch."""
        each = np.minimum(((chosen + 0.5) / slots) ** -self.decay, most).astype(np.uint64)
        key = np.uint64((pool_key * GAMMA) % 2**64)
        turns: Integers = (mix(chosen.astype(np.uint64) + key) % each).astype(np.int64)
        return turns
