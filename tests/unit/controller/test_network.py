"""The network measured anew, with times that are made up."""

from __future__ import annotations

import dataclasses

import pytest

from hvd_compress.controller.network import Network
from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks


@pytest.mark.parametrize(("latency", "transfer"), [(1.0, 1.0), (3.0, 2.0), (0.5, 20.0)])
def test_both_factors_are_found_and_the_same_on_all_ranks(latency: float, transfer: float) -> None:
    """Two ranks are 20 % apart; the first small message takes longer, as ranks come late to it."""
    costs = Formulas(1e-3, 1e-8, 2)
    now = Network(costs, latency, transfer)

    def body(engine: InProcessEngine) -> tuple[Network, int]:
        sizes: list[int] = []

        def note(call) -> None:
            seconds = now.seconds(call.verb, call.algorithm, call.tensor_bytes) * (1.1 if engine.rank else 0.9)
            engine.calls.append(dataclasses.replace(call, seconds=seconds if sizes else 10 * seconds))
            sizes.append(call.tensor_bytes)

        engine.note = note
        found = Network(costs, 7.0, 7.0).remeasured(engine)
        assert sizes == [1024, 1024, 262144, 24] * 2
        return found, len(engine.calls)

    (found, left), (other, _) = run_ranks(2, body)
    assert found == other
    assert left == 0  # they belong to no step
    assert (found.latency, found.transfer) == pytest.approx((latency, transfer))


@pytest.mark.parametrize(
    ("disturbed", "again"),
    [((1.3, 1.3, 1.3), 1), ((3.0, 3.0, 3.0), 2), ((1.0, 1.0, 3.0), 2), ((2.0, 2.0, 1.0), 2), ((9.0, 1.0, 1.0), 1)],
)
def test_what_disturbs_one_measurement_makes_no_other_network(disturbed: tuple[float, ...], again: int) -> None:
    """Of the collectives of the first measurement each takes so many times as long."""
    costs = Formulas(1e-3, 1e-8, 2)
    known = Network(costs)

    def body(engine: InProcessEngine) -> int:
        sizes: list[int] = []

        def note(call) -> None:
            factor = disturbed[len(sizes)] if len(sizes) < 3 else 1.0
            seconds = factor * known.seconds(call.verb, call.algorithm, call.tensor_bytes)
            engine.calls.append(dataclasses.replace(call, seconds=seconds))
            sizes.append(call.tensor_bytes)

        engine.note = note
        assert known.remeasured(engine) is known
        return len(sizes) // 4

    assert run_ranks(2, body) == [again] * 2


def test_where_bytes_add_nothing_one_factor_says_all() -> None:
    costs = Formulas(1e-3, 1e-12, 2)

    def body(engine: InProcessEngine) -> Network:
        engine.note = lambda call: engine.calls.append(dataclasses.replace(call, seconds=0.01))
        return Network(costs).remeasured(engine)

    found = run_ranks(2, body)[0]
    assert found.latency == pytest.approx(0.01 / costs.seconds("allreduce", "auto", 1024))
    assert found.transfer == found.latency


def measured(known: Network, now: Network) -> tuple[Network, int]:
    """Return what is found on the network of now, and the bytes of the largest message."""

    def body(engine: InProcessEngine) -> tuple[Network, int]:
        sizes: list[int] = []

        def note(call) -> None:
            seconds = now.seconds(call.verb, call.algorithm, call.tensor_bytes)
            engine.calls.append(dataclasses.replace(call, seconds=seconds))
            sizes.append(call.tensor_bytes)

        engine.note = note
        return known.remeasured(engine), max(sizes)

    first, *others = run_ranks(4, body)
    assert [other == first for other in others] == [True] * 3
    return first


FAR = Formulas(20e-3, 8e-9, 4)
"""255 KiB add 3 % to a small message."""


@pytest.mark.parametrize(("transfer", "largest"), [(0.25, 4096), (1.0, 1024), (5.0, 256), (20.0, 256), (200.0, 256)])
def test_where_latency_is_long_a_change_of_bandwidth_is_seen_all_the_same(transfer: float, largest: int) -> None:
    """And nothing large is sent where bandwidth has fallen."""
    known, now = Network(FAR), Network(FAR, 1.0, transfer)
    found, most = measured(known, now)
    assert (found.latency, found.transfer) == pytest.approx((1.0, transfer))
    assert (found is known) == (transfer == 1.0)
    assert most <= largest * 1024
    if found is not known:
        assert measured(found, now)[0] is found


def test_a_far_network_that_comes_near_is_known_by_both_factors() -> None:
    near = Network(FAR, 0.01, 1.0)
    found, _ = measured(Network(FAR), near)
    assert (found.latency, found.transfer) == pytest.approx((0.01, 1.0))
    slow, _ = measured(found, Network(FAR, 0.01, 10.0))
    assert slow.transfer == pytest.approx(10.0)
    assert measured(slow, Network(FAR))[0].like(Network(FAR))
