"""Into how many shards buckets are cut."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.papers.covap.sharded import Shard
from hvd_compress.papers.covap.sharding import MOST, sent_by_step, shard_count, shard_counts

VGG19 = (4101096, 16781312, 107480576, 7079424, 7669760, 555072)
"""COVAP, Table V: elements of the tensors of VGG-19."""


def test_the_papers_table() -> None:
    """Its text takes 5,590,260 for the median, which is that of the four tensors that are not marked as large."""
    assert [shard_count(numel, 5_590_260, 100) for numel in VGG19] == [1, 3, 19, 1, 1, 1]
    assert [shard_count(numel, 5_590_260, 4) for numel in VGG19] == [1, 3, 4, 1, 1, 1]
    assert shard_counts(VGG19, 4) == [1, 2, 4, 1, 1, 1], "by the median of all six"
    assert [shard_count(numel, median(VGG19), 100) for numel in VGG19] == [1, 2, 14, 1, 1, 1]


def test_what_a_step_sends() -> None:
    assert sent_by_step((10, 20, 30), (1, 1, 1), 2) == [40, 20], "shards 0 and 2 in step 0, shard 1 in step 1"
    assert sent_by_step((10, 20, 30), (1, 1, 1), 4) == [10, 0, 30, 20]
    assert sent_by_step((7,), (3,), 3) == [3, 2, 2]


def test_fewer_buckets_than_steps_are_cut_further() -> None:
    assert shard_counts((1000,), 4) == [4]
    assert shard_counts((1000, 10), 4) == [4, 1]
    assert shard_counts((1000, 1000), 4) == [4, 4]
    assert shard_counts((1000,) * 8, 4) == [1] * 8, "already even"
    assert shard_counts((1000,), 1) == [1]
    assert shard_counts((), 4) == []
    assert shard_counts((3,), 4) == [3], "no more shards than elements"
    assert shard_counts((0, 0), 4) == [1, 1]


@given(numels=st.lists(st.integers(0, 10**9), min_size=1, max_size=40), interval=st.integers(1, 16))
def test_no_step_sends_much_more_than_the_mean(numels: list[int], interval: int) -> None:
    counts = shard_counts(numels, interval)
    assert all(1 <= count <= max(1, min(interval, numel)) for count, numel in zip(counts, numels, strict=True))
    sent = sent_by_step(numels, counts, interval)
    assert sum(sent) == sum(numels)
    # Each bucket is even within one element.
    assert max(sent) * interval <= MOST * sum(sent) + interval * len(numels)


@pytest.mark.parametrize("numel", [0, 1, 7, 1000])
def test_shards_are_equal_within_one_element(numel: int) -> None:
    parts = [Shard(number, 3).of(numel) for number in range(3)]
    assert (parts[0].start, parts[-1].stop) == (0, numel)
    assert all(before.stop == after.start for before, after in pairwise(parts))
    lengths = [part.stop - part.start for part in parts]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("interval", range(2, 10))
def test_no_step_is_empty(interval: int) -> None:
    """Nor where a bucket less than there are steps would keep within the bound."""
    for buckets in range(1, 12):
        numels = [64] * buckets
        assert min(sent_by_step(numels, shard_counts(numels, interval), interval)) > 0
