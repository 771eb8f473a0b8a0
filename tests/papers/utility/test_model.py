"""The time of a step, by hand and by its laws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.cost.formulas import Formulas
from hvd_compress.errors import ConfigError
from hvd_compress.papers.utility.model import GAMMA, Case, Compression, Payload, Training

MB = 1e6
TRAINING = Training(backward_s=0.1, gradient_bytes=70 * MB, bucket_bytes=20 * MB, gamma=1.1)
"""3 buckets of 20 MB, and one of 10."""
NETWORK = Formulas(alpha=1e-3, beta=1e-9, world_size=4)
"""2 * 3 ms of latency and 1.5 ns a byte in an allreduce."""
LOW_RANK = Compression((Payload(1 * MB), Payload(2 * MB)), encode_s=0.03, decode_s=0.01)


def test_a_step_that_waits_for_the_network() -> None:
    found = Case(TRAINING, replace(NETWORK, beta=2e-9), LOW_RANK).dense()  # 66 ms a bucket, 36 the last
    assert found.backward_s == pytest.approx(0.11)
    assert found.total_s == pytest.approx(3 * 0.066 + 0.036)


def test_a_step_that_waits_for_the_device() -> None:
    found = Case(TRAINING, NETWORK, LOW_RANK).dense()  # 36 ms a bucket, 21 the last
    assert found.communication_s == pytest.approx(0.021)
    assert found.total_s == pytest.approx(max(0.11, 3 * 0.036) + 0.021)


def test_low_rank_factors_are_summed_one_after_the_other() -> None:
    found = Case(TRAINING, NETWORK, LOW_RANK).compressed()
    assert (found.backward_s, found.encode_s, found.decode_s) == pytest.approx((0.1, 0.03, 0.01))
    assert found.communication_s == pytest.approx(2 * 0.006 + 1.5e-9 * 3 * MB)


def test_what_is_gathered_grows_with_the_ranks() -> None:
    """Of 3 other ranks a payload arrives, and 4 are decoded."""
    found = Case(TRAINING, NETWORK, Compression((Payload(2 * MB, summable=False),), 0.03, 0.01)).compressed()
    assert found.communication_s == pytest.approx(3 * 1e-3 + 3 * 2 * MB * 1e-9)
    assert (found.encode_s, found.decode_s) == pytest.approx((0.03, 0.04))


def test_what_is_summed_in_one_round_and_gathered_in_another_is_decoded_for_each_rank() -> None:
    mixed = Compression((Payload(1 * MB), Payload(2 * MB, summable=False)), encode_s=0.03, decode_s=0.01)
    assert not mixed.summable
    assert Case(TRAINING, NETWORK, mixed).compressed().decode_s == pytest.approx(4 * 0.01)


def test_a_step_that_takes_no_time_is_infinitely_faster() -> None:
    """A backward pass of 0 s, and nothing to send."""
    found = Case(replace(TRAINING, backward_s=0.0), NETWORK, Compression(()))
    assert found.dense().total_s > 0 == found.compressed().total_s
    assert found.speedup == math.inf


def test_the_forward_pass_is_part_of_both() -> None:
    longer = replace(TRAINING, forward_s=0.05)
    for step in (Case.dense, Case.compressed):
        without, found = (step(Case(training, NETWORK, LOW_RANK)).total_s for training in (TRAINING, longer))
        assert found == pytest.approx(without + 0.05)


def test_buckets() -> None:
    assert (TRAINING.buckets, TRAINING.last_bytes) == (4, 10 * MB)
    whole = replace(TRAINING, gradient_bytes=60 * MB)
    assert (whole.buckets, whole.last_bytes) == (3, 20 * MB)
    small = replace(TRAINING, gradient_bytes=5.0)
    assert (small.buckets, small.last_bytes) == (1, 5.0)


def test_faster_devices_code_faster() -> None:
    found = Case(TRAINING, NETWORK, LOW_RANK).faster(2.0)
    before = Case(TRAINING, NETWORK, LOW_RANK).compressed()
    assert found.compressed().total_s == pytest.approx((before.total_s + before.communication_s) / 2)
    assert found.dense().total_s == pytest.approx(3 * 0.036 + 0.021)  # now it waits for the network


def test_faster_devices_make_the_forward_pass_shorter() -> None:
    found = Case(replace(TRAINING, forward_s=0.05), NETWORK, LOW_RANK).faster(2.0)
    assert found.dense().forward_s == found.compressed().forward_s == pytest.approx(0.025)


def test_coding_is_traded_for_bytes() -> None:
    """Section 4.2.5: with k = 2 and l = 2 half the time, and 4 times the bytes."""
    found = LOW_RANK.traded(2, 2)
    assert (found.encode_s, found.decode_s) == (0.015, 0.005)
    assert [payload.nbytes for payload in found.payloads] == [4 * MB, 8 * MB]
    assert LOW_RANK.traded(1, 3) == LOW_RANK


trainings = st.builds(
    Training,
    backward_s=st.floats(0, 10),
    gradient_bytes=st.floats(1, 1e10),
    bucket_bytes=st.floats(1e5, 1e9),
    gamma=st.floats(1, 2),
)
networks = st.builds(Formulas, st.floats(0, 0.1), st.floats(1e-12, 1e-5), st.integers(2, 1000))
compressions = st.builds(
    Compression,
    st.lists(st.builds(Payload, st.floats(0, 1e10), st.booleans()), max_size=3).map(tuple),
    st.floats(0, 10),
    st.floats(0, 1),
)
cases = st.builds(Case, trainings, networks, compressions)


@given(cases, st.floats(1, 1000))
def test_more_bandwidth_is_never_slower(case: Case, times: float) -> None:
    faster = case.at(times / case.network.beta)
    for step in (Case.dense, Case.compressed):
        assert step(faster).total_s <= step(case).total_s * (1 + 1e-12)


@given(cases, st.floats(1, 1000))
def test_faster_devices_are_never_slower(case: Case, times: float) -> None:
    for step in (Case.dense, Case.compressed):
        assert step(case.faster(times)).total_s <= step(case).total_s * (1 + 1e-12)


@given(trainings, networks)
def test_a_whole_gradient_in_no_time_is_dense_without_overlap(training: Training, network: Formulas) -> None:
    """Of one bucket, which nothing hides in either."""
    one = replace(training, bucket_bytes=training.gradient_bytes, gamma=1.0)
    case = Case(one, network, Compression((Payload(one.gradient_bytes),)))
    assert case.compressed().total_s == pytest.approx(case.dense().total_s)
    assert case.speedup == pytest.approx(1.0)


@given(cases)
def test_a_step_takes_at_least_its_compute(case: Case) -> None:
    assert case.dense().total_s >= case.training.gamma * case.training.backward_s
    assert case.compressed().total_s >= case.training.backward_s


def test_gamma_is_what_the_paper_observed() -> None:
    assert 1.04 <= GAMMA <= 1.1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: replace(TRAINING, backward_s=-0.1), "backward_s = -0.1 is not a number, 0 or more"),
        (lambda: replace(TRAINING, gamma=0.9), "gamma = 0.9 is not a number, 1 or more"),
        (lambda: replace(TRAINING, bucket_bytes=0.0), "bucket_bytes = 0.0 is not a number above 0"),
        (lambda: replace(TRAINING, bucket_bytes=1e-320), "bucket_bytes = 1e-320 are too few"),
        (lambda: replace(TRAINING, gradient_bytes=float("nan")), "gradient_bytes = nan"),
        (lambda: Payload(-1.0), "nbytes = -1.0"),
        (lambda: Compression((), encode_s=float("inf")), "encode_s = inf"),
        (lambda: Case(TRAINING, replace(NETWORK, world_size=1), LOW_RANK), "with one rank nothing is communicated"),
        (lambda: Case(TRAINING, replace(NETWORK, beta=-1.0), LOW_RANK), "beta = -1.0"),
    ],
)
def test_what_cannot_be_is_refused(make, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=says):
        make()
