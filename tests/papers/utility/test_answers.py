"""Where compression pays, and how much is needed: by hand, and against trying values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hvd_compress.cost.formulas import Formulas
from hvd_compress.papers.utility.answers import Pays, coding_budget_s, needed_compression, pays
from hvd_compress.papers.utility.model import Case, Compression, Payload, Training
from tests.papers.utility.test_model import cases, networks, trainings

MB = 1e6
TRAINING = Training(backward_s=0.1, gradient_bytes=80 * MB, bucket_bytes=20 * MB, gamma=1.0)
NETWORK = Formulas(alpha=0.0, beta=1e-9, world_size=2)
"""An allreduce of 2 ranks sends as many bytes as there are."""


def case(payload_bytes: float, coding_s: float, alpha: float = 0.0) -> Case:
    return Case(TRAINING, replace(NETWORK, alpha=alpha), Compression((Payload(payload_bytes),), coding_s))


def test_the_crossover_by_hand() -> None:
    """Dense takes 80 MB where the network is slow; compressed 0.1 + 0.06 s and 16 MB: equal at 64 MB in 0.16 s."""
    assert pays(case(16 * MB, 0.06)) == Pays(pytest.approx(400 * MB), math.inf)


def test_the_crossover_where_all_but_the_last_bucket_is_hidden() -> None:
    """0.1 s and 20 MB are equal to 0.1 + 0.01 s and 10 MB at 10 MB in 0.01 s."""
    assert pays(case(10 * MB, 0.01)) == Pays(pytest.approx(1000 * MB), math.inf)


def test_free_compression_always_pays() -> None:
    assert pays(case(1 * MB, 0.0)) == Pays(math.inf, 0.0)
    assert pays(case(1 * MB, 0.0, alpha=1e-3)) == Pays(math.inf, 0.0)


def test_more_bytes_than_dense_never_pay() -> None:
    assert pays(case(90 * MB, 0.06)) == Pays(0.0, math.inf)


def test_fewer_messages_pay_on_a_fast_network() -> None:
    """4 buckets wait 4 * 2 messages, one payload for 2: 0.6 s are saved and 0.1 spent; 10 MB more take 0.5 s."""
    assert pays(case(90 * MB, 0.0, alpha=0.1)) == Pays(0.0, pytest.approx(10 * MB / 0.5))


@given(cases)
def test_at_the_crossover_both_take_as_long(found: Case) -> None:
    for bytes_per_s in (pays(found).below, pays(found).above):
        if 1e-3 < bytes_per_s < 1e15:
            there = found.at(bytes_per_s)
            assert there.dense().total_s == pytest.approx(there.compressed().total_s, rel=1e-6)


@given(cases, st.floats(4, 12))
def test_it_pays_where_it_is_faster(found: Case, exponent: float) -> None:
    bytes_per_s = 10**exponent
    there, where = found.at(bytes_per_s), pays(found)
    dense_s, compressed_s = there.dense().total_s, there.compressed().total_s
    assume(abs(dense_s - compressed_s) > 1e-6 * (dense_s + compressed_s))
    assert (dense_s > compressed_s) == (bytes_per_s < where.below or bytes_per_s > where.above)


def test_the_compression_needed_by_hand() -> None:
    """3 buckets of 20 MB at 1 GB/s take 60 ms, and the backward pass 100, or 15."""
    assert needed_compression(case(0, 0)) == 1.0
    fast = replace(case(0, 0), training=replace(TRAINING, backward_s=0.015))
    assert needed_compression(fast) == pytest.approx(4.0)
    waiting = replace(fast, network=replace(NETWORK, alpha=1e-3))  # 3 * 2 ms of latency
    assert needed_compression(waiting) == pytest.approx(60 / (15 - 6))
    assert needed_compression(replace(fast, network=replace(NETWORK, alpha=3e-3))) == math.inf


@given(trainings, networks, st.integers(2, 40), st.floats(1.1, 1000))
def test_what_is_needed_hides_all_buckets_but_the_last(
    training: Training, network: Formulas, buckets: int, needed: float
) -> None:
    """Of a training whose other buckets take so many times as long as the backward pass."""
    others_s = (buckets - 1) * replace(network, alpha=0.0).seconds("allreduce", "ring", training.bucket_bytes)
    training = replace(
        training, gradient_bytes=(buckets - 0.5) * training.bucket_bytes, backward_s=others_s / needed / training.gamma
    )
    found = Case(training, replace(network, alpha=0.0), Compression(()))
    assert needed_compression(found) == pytest.approx(needed)
    sizes = {name: getattr(training, name) / (1.001 * needed) for name in ("gradient_bytes", "bucket_bytes")}
    dense = replace(found, training=replace(training, **sizes)).dense()
    last_s = found.network.seconds("allreduce", "ring", sizes["bucket_bytes"] / 2)
    assert dense.communication_s == pytest.approx(last_s, rel=1e-6)


@given(cases)
def test_with_all_of_the_budget_it_is_as_fast_as_dense(found: Case) -> None:
    budget_s = coding_budget_s(found)
    if budget_s >= 0:
        spent = replace(found, compression=replace(found.compression, encode_s=budget_s, decode_s=0.0))
        assert spent.speedup == pytest.approx(1.0)
    else:
        assert replace(found, compression=replace(found.compression, encode_s=0.0, decode_s=0.0)).speedup < 1
