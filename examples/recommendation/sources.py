"""Where batches come from, and what a model must know about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

import torch
from images.data import rank_batches
from images.ranks import Ranks

from hvd_compress.errors import ConfigError
from recommendation.batch import Batch
from recommendation.criteo import Criteo
from recommendation.packages import NUMERICAL as PACKAGE_NUMERICAL
from recommendation.packages import Bags, load_packages
from recommendation.skew import Skew
from recommendation.synthetic import KAGGLE_ROWS, Synthetic, criteo_like

TEST_BATCHES = 20


@dataclass(frozen=True)
class Source:
    """This rank's batches: all ranks have equally many. The ids are the element 2 of a batch.

    Attributes:
        text: what the data is.
        tables: rows of each.
        train: batches to train on.
        test: batches for a final score; none where there is no such data.
        numerical: numerical features.
        outputs: logits of an example: 1, or the number of classes.
        bags: batches are Bags, of one table; else Batch.
    """

    text: str
    tables: tuple[int, ...]
    train: Iterable[Batch | Bags]
    test: Iterable[Batch | Bags] = ()
    numerical: int = 13
    outputs: int = 1
    bags: bool = False

    @property
    def features(self) -> int:
        return len(self.tables)


class Batches:
    """Batches to train on and, behind them, those to test on.

    Attributes:
        first: how many are left out, as an earlier run has trained on them.
    """

    def __init__(self, source: Source) -> None:
        self._source, self.first = source, 0

    def __iter__(self) -> Iterator[Batch | Bags]:
        return islice(chain(self._source.train, self._source.test), self.first, None)


def synthetic(scale: float, batch_size: int, steps: int, seed: int, ranks: Ranks, skew: Skew | None = None) -> Source:
    """Generated data with the tables of Criteo's, their rows times `scale`, and a skew like theirs or another one."""

    def part(first_step: int, steps: int) -> Synthetic:
        place = {"rank": ranks.rank, "world_size": ranks.size, "first_step": first_step}
        return criteo_like(scale, batch_size=batch_size, steps=steps, skew=skew, seed=seed, **place)

    train = part(0, steps)
    return Source(f"generated data, {scale:g} of Criteo's rows", train.tables, train, part(steps, TEST_BATCHES))


def criteo(paths: list[Path], scale: float, batch_size: int, steps: int, ranks: Ranks) -> Source:
    """Criteo's files, at most `steps` batches. Tables have Kaggle's rows times `scale`, and one for missing ids."""
    tables = tuple(1 + max(min(rows, 4), round(rows * scale)) for rows in KAGGLE_ROWS)
    files = Criteo(paths, tables, batch_size=batch_size, rank=ranks.rank, world_size=ranks.size)
    return Source(f"Criteo's {', '.join(map(str, paths))}", tables, islice(files, steps))


def packages(batch_size: int, steps: int, seed: int, ranks: Ranks) -> Source:
    """Debian's packages, in as many epochs as `steps` batches take."""
    data = load_packages()
    if len(data.train.labels) < batch_size * ranks.size:
        raise ConfigError(
            f"{len(data.train.labels)} packages are fewer than {batch_size} for each of {ranks.size} ranks"
        )

    def epoch(bags: Bags, number: int) -> list[torch.Tensor]:
        place = {"rank": ranks.rank, "world_size": ranks.size, "seed": seed, "epoch": number}
        return list(rank_batches(len(bags.labels), batch_size, **place))

    def endless() -> Iterator[Bags]:
        for number in count():
            # Whole batches only: the rest may be one example, too few for batch normalisation.
            yield from (data.train.take(each) for each in epoch(data.train, number) if len(each) == batch_size)

    test = [data.test.take(each) for each in epoch(data.test, 0)]
    text = (
        f"Debian's package index, {len(data.train.labels)} packages for training, {len(data.test.labels)} for testing"
    )
    return Source(
        text, (len(data.names),), islice(endless(), steps), test, PACKAGE_NUMERICAL, len(data.sections), bags=True
    )
