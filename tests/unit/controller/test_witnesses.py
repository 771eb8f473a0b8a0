"""Whether the network has changed, by the buckets that took what they took."""

from __future__ import annotations

import math

import pytest

from hvd_compress.controller.policy import Policy
from hvd_compress.controller.standing import Known, Standing
from hvd_compress.controller.witnesses import Witnesses

POLICY = Policy(drift=1.25, evident=1.5, broken=2.5, calm=3, least_s=0.0003)


def chosen_only(seconds: float) -> Standing:
    standing = Standing(POLICY)
    standing.begin(seconds, Known.TRIALS)
    return standing


def confirmed(seconds: float) -> Standing:
    standing = chosen_only(seconds)
    assert not standing.drifted(seconds)
    return standing


def deny(standings: list[Standing], *typical: float, mixed: tuple[int, ...] = ()) -> bool:
    """Whether the others deny what happens in a window of which each bucket takes these seconds."""
    witnesses = Witnesses(standings, mixed)
    return witnesses.deny([n for n, s in enumerate(standings) if n not in mixed and s.drifted(typical[n])], typical)


def test_most_of_the_exchanges_by_time_decide() -> None:
    assert deny([confirmed(0.01), confirmed(0.1)], 0.05, 0.1)
    assert not deny([confirmed(0.01), confirmed(0.1)], 0.01, 0.5)
    assert not deny([confirmed(0.01), confirmed(0.02)], 0.05, 0.02)  # what it takes now counts


def test_what_takes_far_less_counts_as_what_it_took() -> None:
    assert not deny([confirmed(0.1), confirmed(0.05)], 0.01, 0.05)
    assert not deny([chosen_only(0.1), confirmed(0.05)], 0.01, 0.05)  # a first window, which replaces what was known


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(lambda: chosen_only(0.1), id="its trials are all that is known of it"),
        pytest.param(lambda: confirmed(0.001), id="too short for a drift to be told"),
    ],
)
def test_who_would_not_tell_denies_nothing(silent) -> None:
    others = [silent() for _ in range(3)]
    assert not deny([confirmed(0.0002), *others], 0.0008, *(standing.seconds for standing in others))


def test_neither_does_who_went_several_ways() -> None:
    assert not deny([confirmed(0.01), confirmed(0.1)], 0.05, 0.1, mixed=(1,))


def test_nor_who_took_nothing_that_can_be_told() -> None:
    assert not deny([confirmed(0.01), confirmed(0.1)], 0.05, math.nan)


def test_who_is_in_doubt_is_no_witness_and_speaks_for_the_network() -> None:
    """One odd window is no drift yet, but it is no denial either."""
    assert not deny([confirmed(0.01), confirmed(0.1)], 0.05, 0.13)
    assert deny([confirmed(0.01), confirmed(0.1), confirmed(0.2)], 0.05, 0.13, 0.2)
    assert not deny([confirmed(0.01), confirmed(0.1), confirmed(0.15)], 0.05, 0.13, 0.15)
