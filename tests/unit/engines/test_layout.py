"""Shards cover everything once."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.engines import layout


@given(numel=st.integers(0, 10**12), n=st.integers(1, 64))
def test_shards_cover_everything_once_and_differ_by_at_most_one(numel, n):
    shards = [layout.shard(numel, n, rank) for rank in range(n)]
    assert shards[0].start == 0
    assert shards[-1].stop == numel
    assert all(a.stop == b.start for a, b in itertools.pairwise(shards))
    lengths = layout.shard_lengths(numel, n)
    assert lengths == [part.stop - part.start for part in shards] == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_the_first_shards_are_the_longer_ones():
    assert layout.shard_lengths(8, 3) == [3, 3, 2]
    assert layout.shard(8, 3, 2) == slice(6, 8)


@given(n=st.integers(1, 10**6))
def test_largest_power_of_two(n):
    core = layout.largest_power_of_two(n)
    assert core <= n < 2 * core
    assert core & (core - 1) == 0
