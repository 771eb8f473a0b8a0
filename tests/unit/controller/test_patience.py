"""Patience: what was in vain is done again more rarely, until nothing has been odd for long."""

from __future__ import annotations

from hvd_compress.controller.patience import Patience


def test_it_doubles_up_to_the_longest_and_begins_again_when_it_was_not_in_vain() -> None:
    patience = Patience(2, 10)
    lengths = []
    for _ in range(4):
        lengths.append((patience.length, patience.fresh))
        assert patience.in_vain() == lengths[-1][0]
    assert lengths == [(2, True), (4, False), (8, False), (10, False)]
    patience.restart()
    assert (patience.length, patience.fresh) == (2, True)


def test_a_doubling_is_taken_back_each_time_enough_in_a_row_was_not_odd() -> None:
    patience = Patience(1, 8, forgets=3)
    for _ in range(3):
        patience.in_vain()
    lengths = []
    for odd in (False, False, True, *[False] * 9, False):
        patience.pass_by(odd)
        lengths.append(patience.length)
    assert lengths == [8, 8, 8, 8, 8, 4, 4, 4, 2, 2, 2, 1, 1]


def test_without_a_limit_it_forgets_nothing() -> None:
    patience = Patience(1, 8)
    patience.in_vain()
    for _ in range(100):
        patience.pass_by(False)
    assert patience.length == 2
