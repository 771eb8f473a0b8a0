"""The generator: distributions, what a batch depends on, and that labels can be learned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from recommendation import skew
from recommendation.bursts import Bursts
from recommendation.skew import Head, Top, Zipf
from recommendation.synthetic import KAGGLE_ROWS, Permutation, Synthetic, criteo_like

from hvd_compress.embedding.kernels import NativeLookahead, UniqueRows
from hvd_compress.errors import ConfigError

DRAWS = 100_000
SKEWS = [Zipf(0), Zipf(0.5), Zipf(1), Zipf(1.5), Zipf(5), Top(0.4), Top(0.0), Top(1.0), Head(20, 0.9, 0.4)]
SKEWS += [Bursts(20, 0.3, 0.6, 50, 14), Bursts(1, 0.5, 0, 1, 0.1), Bursts(3, 1, 1, 4, 1)]


def uniform(count: int = DRAWS) -> np.ndarray:
    return np.random.default_rng(0).random(count)


class TestSkew:
    @pytest.mark.parametrize("rows", [1, 3, 21, 24, 1000, 200_000])
    @pytest.mark.parametrize("distribution", SKEWS, ids=lambda each: type(each).__name__)
    def test_ranks_are_those_of_the_table(self, distribution, rows):
        numbers = np.concatenate([uniform(), [0.0, np.nextafter(1, 0), 0.4, 0.9, np.nextafter(0.4, 0)]])
        ranks = distribution.draw(numbers, rows)
        assert ranks.dtype == np.int64
        assert ranks.shape == numbers.shape
        assert ranks.min() >= 0
        assert ranks.max() < rows

    @pytest.mark.parametrize("alpha", [0, 0.5, 1, 2, 5])
    def test_zipf_has_the_probabilities_of_its_formula(self, alpha):
        weights = np.arange(1, 1001) ** -float(alpha)
        counts = np.bincount(Zipf(alpha).draw(uniform(), 1000), minlength=1000)
        expected = DRAWS * weights / weights.sum()
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected.max()) + 1

    @pytest.mark.parametrize("alpha", [0.5, 1.0, 1.2])
    def test_the_integral_goes_on_where_the_sum_ends(self, monkeypatch, alpha):
        exact = Zipf(alpha).draw(uniform(), 50_000)
        monkeypatch.setattr(skew, "EXACT_RANKS", 100)
        short = Zipf(alpha).draw(uniform(), 50_000)
        assert (short[exact < 100] == exact[exact < 100]).mean() > 0.999
        assert np.abs(short - exact).max() <= 1

    @pytest.mark.parametrize("alpha", [0, 1, 5])
    def test_a_batch_of_a_large_table_takes_milliseconds(self, alpha):
        table = Synthetic([10_000_000], Zipf(alpha), batch_size=16_384, steps=1)
        table.batch(0)
        start = time.perf_counter()
        table.batch(1)
        assert time.perf_counter() - start < 0.5

    @pytest.mark.parametrize("share", [0.01, 0.4, 0.9])
    def test_the_first_percent_takes_its_share(self, share):
        ranks = Top(share).draw(uniform(), 100_000)
        assert (ranks < 1000).mean() == pytest.approx(share, abs=0.01)
        first, second = ((ranks >= start) & (ranks < start + 500) for start in (0, 500))
        assert first.sum() > 5 * second.sum()
        rest = ranks[ranks >= 1000]
        assert np.median(rest) == pytest.approx(50_500, rel=0.05)

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            *((Zipf, (-1,)), (Top, (1.1,)), (Top, (0.5, 2)), (Head, (0, 0.5, 1)), (Head, (5, 0, 1))),
            *((Bursts, (0, 0.5, 1, 5, 1)), (Bursts, (5, 0.5, 1, 0, 1)), (Bursts, (5, 0.5, 1, 5, 0))),
        ],
    )
    def test_what_is_no_distribution_is_refused(self, kind, values):
        with pytest.raises(ConfigError):
            kind(*values)


class TestBursts:
    BURSTS = Bursts(20, share=0.3, alpha=0.6, slots=50, decay=3)
    ROWS = 50_020

    def tail(self, key: int, bursts: Bursts = BURSTS, rows: int = ROWS) -> np.ndarray:
        """The distinct ranks that are not of the head."""
        ranks = bursts.draw(uniform(5000), rows, key)
        return np.unique(ranks[ranks >= bursts.head])

    def test_the_head_takes_its_share_and_the_pool_the_rest(self):
        ranks = self.BURSTS.draw(uniform(), self.ROWS)
        assert (ranks < 20).mean() == pytest.approx(0.3, abs=0.01)
        _, counts = np.unique(ranks[ranks >= 20], return_counts=True)
        assert len(counts) == 50
        assert counts / DRAWS == pytest.approx(0.7 / 50, rel=0.15)

    def test_ranks_of_one_batch_share_its_pool(self):
        pool = self.tail(7)
        other = self.BURSTS.draw(np.random.default_rng(1).random(5000), self.ROWS, 7)
        assert (pool == np.unique(other[other >= 20])).all()
        assert np.isin(pool, self.tail(8)).mean() < 0.5

    def test_a_row_comes_back_as_often_as_its_slot_has_rows(self):
        batches = 2000
        rows, uses = np.unique(np.concatenate([self.tail(key) for key in range(batches)]), return_counts=True)
        slots = (rows - 20) % 50
        for slot in (5, 10, 25, 40, 49):
            of_slot = uses[slots == slot]
            period = min(int(((slot + 0.5) / 50) ** -3), 1000)
            assert of_slot.sum() == batches
            assert len(of_slot) == pytest.approx(period, rel=0.15)
            assert of_slot.std() < 2 * np.sqrt(of_slot.mean())

    def test_a_small_table_has_fewer_slots_that_are_as_popular(self):
        ranks = self.BURSTS.draw(uniform(), 20 + 40)
        _, counts = np.unique(ranks[ranks >= 20], return_counts=True)
        assert len(counts) == 10
        assert counts / DRAWS == pytest.approx(0.7 / 50, rel=0.15)
        assert len(np.unique(np.concatenate([self.tail(key, rows=60) for key in range(200)]))) <= 40


@pytest.mark.parametrize("rows", [1, 2, 3, 12, 1000, 10_131_227])
def test_a_permutation_has_each_row_once_and_spreads_the_first(rows):
    ids = Permutation(rows, 3).ids(np.arange(min(rows, 100_000)))
    assert len(np.unique(ids)) == len(ids)
    assert ids.min() >= 0
    assert ids.max() < rows
    if rows >= 1000:
        owners = np.bincount(ids[:800] % 8, minlength=8)  # of the most popular rows
        assert owners.min() > 60


class TestBatches:
    @staticmethod
    def equal(one, other) -> bool:
        return all(torch.equal(*parts) for parts in zip(one, other, strict=True))

    def test_a_batch_depends_on_seed_step_and_rank_alone(self):
        def source(**change):
            return criteo_like(0.001, **{"batch_size": 32, "steps": 4, "seed": 5, "rank": 1, **change})

        batches = list(source())
        assert len(batches) == len(source()) == 4
        assert all(map(self.equal, batches, source()))
        assert self.equal(batches[3], source().batch(3))
        assert all(map(self.equal, batches[2:], source(first_step=2, steps=2)))
        for other in (source(seed=6).batch(3), source(rank=0).batch(3), batches[2]):
            assert not torch.equal(batches[3].ids, other.ids)
            assert not torch.equal(batches[3].dense, other.dense)

    def test_shapes_and_values(self):
        batch = criteo_like(0.001, batch_size=512, steps=1).batch(0)
        assert (batch.labels.shape, batch.dense.shape, batch.ids.shape) == ((512,), (512, 13), (512, 26))
        assert (batch.labels.dtype, batch.dense.dtype, batch.ids.dtype) == (torch.float32, torch.float32, torch.int64)
        assert (batch.dense >= 0).all()
        assert 0.02 < (batch.dense == 0).float().mean() < 0.2
        assert 0.15 < batch.labels.mean() < 0.4

    def test_the_skew_can_be_another(self):
        few, many = (criteo_like(0.01, batch_size=512, steps=1, skew=Top(share)).batch(0) for share in (0.99, 0.01))
        assert len(few.ids[:, 2].unique()) < 0.8 * len(many.ids[:, 2].unique())

    @pytest.mark.parametrize("change", [{"tables": []}, {"tables": [3, 0]}, {"batch_size": 0}])
    def test_no_tables_rows_or_examples_are_refused(self, change):
        with pytest.raises(ConfigError, match="1 or more"):
            Synthetic(**{"tables": [3], "skew": Zipf(1), "batch_size": 4, "steps": 1, **change})

    def test_labels_follow_the_hidden_model(self):
        source = criteo_like(0.01, batch_size=4096, steps=1)
        batch = source.batch(0)
        probabilities = torch.from_numpy(source.probabilities(batch.dense.numpy(), batch.ids.numpy()))
        order = probabilities.argsort()
        for part in order.chunk(4):
            assert batch.labels[part].mean().item() == pytest.approx(probabilities[part].mean().item(), abs=0.05)
        assert batch.labels[order[-500:]].mean() > batch.labels[order[:500]].mean() + 0.4


class Rows(NamedTuple):
    """Means over steps, in thousands, and distinct rows of the first batches by their number."""

    used: float
    multi_user: float
    sync_now: float
    kept: float
    windows: dict[int, float]


def rows_of(scale: float, batch_size: int, steps: int, windows: Sequence[int] = ()) -> Rows:
    """Count the rows of 8 ranks, divided by `scale`."""
    sources = [criteo_like(scale, batch_size=batch_size, steps=steps, rank=rank, world_size=8) for rank in range(8)]
    starts = torch.tensor([0, *sources[0].tables[:-1]]).cumsum(0)
    members = list(range(8))
    planner = NativeLookahead(8, 0, members, members, cache_rows=1_000_000, lookahead=2)
    seen, distinct, counts = np.zeros(sum(sources[0].tables), bool), [], []
    for batches in zip(*sources, strict=True):
        rows = [UniqueRows().collect((batch.ids + starts).flatten())[0] for batch in batches]
        planner.add(torch.cat(rows), [len(each) for each in rows])
        seen[torch.cat(rows)] = True
        distinct.append(seen.sum() / scale / 1000)
    for _ in range(steps):
        counts.append(planner.plan().counts)
    means = np.mean([(each.used, each.used - each.single_user, each.sync_now, each.kept) for each in counts[1:]], 0)
    return Rows(*means / scale / 1000, {batches: distinct[batches - 1] for batches in windows})


def test_eight_ranks_use_the_rows_that_the_paper_tells():
    """Section 5.2.3: 65K embeddings an iteration, 48K without those that one trainer uses, 22.7K used in the next."""
    assert sum(KAGGLE_ROWS) == 33_762_577
    rows = rows_of(1, 2048, steps=10, windows=(1, 5, 10))
    assert rows.used == pytest.approx(65, rel=0.02)
    assert rows.multi_user == pytest.approx(48, rel=0.02)
    assert rows.sync_now == pytest.approx(22.7, rel=0.02)
    assert rows.kept < 0.01 * rows.used
    assert rows.windows[1] == pytest.approx(65, rel=0.02)
    assert rows.windows[5] == pytest.approx(206, rel=0.1)
    assert rows.windows[10] == pytest.approx(347, rel=0.1)


def test_the_pool_grows_with_the_batch():
    once, twice = (rows_of(0.05, batch_size, steps=10) for batch_size in (102, 204))
    assert twice.used - twice.sync_now == pytest.approx(2 * (once.used - once.sync_now), rel=0.1)


def test_a_smaller_scale_keeps_the_shares():
    rows = rows_of(0.05, 102, steps=200, windows=(5, 10, 50, 100, 200))
    assert rows.used == pytest.approx(65, rel=0.05)
    assert rows.multi_user == pytest.approx(48, rel=0.05)
    assert rows.sync_now == pytest.approx(22.7, rel=0.05)
    paper = {5: 206, 10: 347, 50: 1225, 100: 2138, 200: 3753}  # table 5.3, 192 bytes a row
    assert rows.windows == pytest.approx(paper, rel=0.1)
