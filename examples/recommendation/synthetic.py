"""Click data of a generator: the same batches for the same seed, step and rank, without those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np
import numpy.typing as npt
import torch

from hvd_compress.errors import ConfigError
from recommendation.batch import Batch
from recommendation.bursts import Bursts
from recommendation.skew import Skew
from recommendation.splitmix import GAMMA, Hashes, mix

KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of the 26 categorical features of Criteo's Kaggle data: 33,762,577, as in Bagpipe's Table 5.1."""
GOLDEN = 0.6180339887498949
ID_EFFECT, PAIR_EFFECT, DENSE_EFFECT, BIAS = 0.45, 0.9, 0.6, -1.7
DENSE_MEAN = 0.725
"""Of the hidden model: about 26 % of the labels are 1, as in Criteo's Kaggle data."""


class Synthetic:
    """This rank's batches: rows by a skew, labels by a hidden model.

    The hidden model: each id has a fixed value; the logit is a sum of these, of products of the values of neighbouring
    features, and of the numerical features with fixed weights. Iterating gives `steps` batches.
    """

    def __init__(
        self,
        tables: Sequence[int],
        skew: Skew,
        *,
        batch_size: int,
        steps: int,
        numerical: int = 13,
        seed: int = 0,
        rank: int = 0,
        first_step: int = 0,
    ) -> None:
        """
        Args:
            tables: rows of each.
            skew: how often the rows of a table are used.
            batch_size: of one rank.
            seed: the same on all ranks.
            first_step: number of the first batch, where training goes on.

        Raises:
            ConfigError: a table has no rows, there is no table, or a batch has no examples.
        """
        if not tables or min(tables) < 1 or batch_size < 1:
            raise ConfigError(f"tables of {list(tables)} rows and batches of {batch_size}: 1 or more of each, please")
        self.tables, self.skew, self.numerical = tuple(tables), skew, numerical
        self.batch_size, self.steps, self.first_step = batch_size, steps, first_step
        self.seed, self.rank = seed, rank
        self._permutations = [Permutation(rows, seed + table) for table, rows in enumerate(self.tables)]
        self._weights = DENSE_EFFECT * np.random.default_rng([seed, 1]).standard_normal(numerical, np.float32)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch(step) for step in range(self.first_step, self.first_step + self.steps))

    def batch(self, step: int) -> Batch:
        """Draw this rank's batch of a step."""
        generator = np.random.default_rng([self.seed, 0, step, self.rank])
        pool_keys = np.random.default_rng([self.seed, 3, step]).integers(2**63, size=len(self.tables)).tolist()
        ids = np.empty((self.batch_size, len(self.tables)), np.int64)
        for table, permutation in enumerate(self._permutations):
            uniform = generator.random(self.batch_size)
            ids[:, table] = permutation.ids(self.skew.draw(uniform, permutation.rows, pool_keys[table]))
        dense = np.log1p(np.exp(generator.standard_normal((self.batch_size, self.numerical), np.float32)))
        dense[generator.random(dense.shape, np.float32) < 0.1] = 0  # as missing ones
        clicks = generator.random(self.batch_size, np.float32) < self.probabilities(dense, ids)
        return Batch(*(torch.from_numpy(array) for array in (clicks.astype(np.float32), dense, ids)))

    def probabilities(self, dense: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the hidden model's probabilities of label 1, (batch,)."""
        values = _values(ids, self.seed)
        pairs = (values[:, 1:] * values[:, :-1]).sum(axis=1)
        logits = ID_EFFECT * values.sum(axis=1) + PAIR_EFFECT * pairs / np.sqrt(len(self.tables))
        logits += (dense - DENSE_MEAN) @ self._weights + BIAS
        probabilities: npt.NDArray[np.float32] = 1 / (1 + np.exp(-logits))
        return probabilities


class Permutation:
    """Spreads popular rows over a table: rank i has the id (i * factor + shift) mod rows, factor and rows coprime."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows = rows
        self.factor = max(1, int(rows * GOLDEN))
        while gcd(self.factor, rows) != 1:
            self.factor += 1
        self.shift = int(np.random.default_rng([seed, 2]).integers(rows))

    def ids(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return (ranks * self.factor + self.shift) % self.rows


def criteo_like(
    scale: float = 1.0,
    *,
    batch_size: int,
    steps: int,
    skew: Skew | None = None,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 8,
    first_step: int = 0,
) -> Synthetic:
    """Return data with the tables of Criteo's Kaggle data, their rows times `scale`, and a skew as Bagpipe measured it,
    or another one: section 5.4.3 varies it.

    The paper gives no distribution. It gives counts of rows, for batches of 16,384 examples over 8 ranks. The five
    numbers of the skew are fitted to these (scale 1, thousands of distinct rows, 192 bytes each in table 5.3):

        section    rows                                           paper   here
        5.2.3      of a batch (replicated cache)                     65     65
        5.2.3      of them used by several ranks (LRPP)              48     48
        5.2.3      needed in the next step (delayed sync)          22.7   22.7
        table 5.3  of 5 batches                                     206    217
        table 5.3  of 10 batches                                    347    373
        table 5.3  of 50 batches                                  1,225  1,292
        table 5.3  of 100 batches                                 2,138  2,180
        table 5.3  of 200 batches                                 3,753  3,667
        table 5.3  of 300 batches                                 5,226  4,961

    No distribution with independent draws has the first three: a row that a batch uses several times, the next batch
    would use, too. With scale s, batches of s * 16,384 examples have about the same shares: at 0.05, the counts are
    within 4 % of s times those of scale 1; at 0.01, within 15 %, as the smallest tables do not shrink. The rows of
    the head follow the scale, and the slots of the pool follow batch_size * world_size.

    Args:
        world_size: ranks that train on a batch of each step.
    """
    tables = [max(min(rows, 4), round(rows * scale)) for rows in KAGGLE_ROWS]
    head = max(1, round(1140 * scale))
    slots = max(1, round(5400 / 16_384 * batch_size * world_size))
    skew = skew or Bursts(head, share=0.276, alpha=0.6, slots=slots, decay=14)
    return Synthetic(tables, skew, batch_size=batch_size, steps=steps, seed=seed, rank=rank, first_step=first_step)


def _values(ids: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float32]:
    """Return a fixed number in [-1, 1) for each id of each table: 24 bits of its hash."""
    tables = np.arange(ids.shape[1], dtype=np.uint64) + np.uint64((seed * 1_000 + 1) % 2**64)
    hashes: Hashes = mix(ids.astype(np.uint64) + tables * np.uint64(GAMMA))
    values: npt.NDArray[np.float32] = (hashes >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return values
