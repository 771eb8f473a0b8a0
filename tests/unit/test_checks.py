from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from hvd_compress.checks import check_choice, check_flag, check_number, check_ratio, check_whole, is_number, is_whole
from hvd_compress.errors import ConfigError


def test_what_may_be_is_returned() -> None:
    assert check_whole("k", 3, 1, 3) == 3
    assert check_whole("k", 10**30, 0) == 10**30
    assert check_number("x", 0, 0, 1) == 0
    assert check_number("x", 1.0, 0, 1, above=True) == 1.0
    check_flag("flag", False)
    check_choice("word", "b", ("a", "b"))
    check_ratio(1)


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda: check_whole("k", 0, 1), "k = 0 is not a whole number, 1 or more"),
        (lambda: check_whole("k", 10_000, 1, 9_999), "k = 10000 is not a whole number, 1 to 9,999"),
        (lambda: check_whole("k", True, 0), "k = True is not a whole number, 0 or more"),
        (lambda: check_whole("k", 1.0, 1, of="steps"), "k = 1.0 is not a whole number of steps, 1 or more"),
        (lambda: check_whole("k", "3", 1, hint="so many"), "k = '3' is not a whole number, 1 or more: so many"),
        (lambda: check_whole("k", np.int64(3), 1), "is not a whole number"),
        (lambda: check_number("x", -1, 0), "x = -1 is not a number, 0 or more"),
        (lambda: check_number("x", math.nan, 0), "x = nan is not a number, 0 or more"),
        (lambda: check_number("x", math.inf, 0), "x = inf is not a number, 0 or more"),
        (lambda: check_number("x", 10**400, 0), "is not a number, 0 or more"),
        (lambda: check_number("x", False, 0), "x = False is not a number, 0 or more"),
        (lambda: check_number("x", 2, 0, 1), "x = 2 is not a number, 0 to 1"),
        (lambda: check_number("x", 0, 0, above=True), "x = 0 is not a number above 0"),
        (lambda: check_number("x", 2, 0, 1, above=True, hint="why"), "x = 2 is not a number above 0, 1 at most: why"),
        (lambda: check_number("x", 1.0, 0, below=1), "x = 1.0 is not below 1"),
        (lambda: check_flag("flag", 1), "flag = 1 is neither True nor False"),
        (
            lambda: check_choice("word", "bb", ("aaa", "bbb")),
            "unknown word 'bb'; known are aaa, bbb; did you mean bbb?",
        ),
        (lambda: check_choice("word", ["a"], {"a": 1}, " here"), "unknown word ['a']; known here are a"),
        (lambda: check_ratio(True), "ratio must be a number, got True"),
        (lambda: check_ratio(1.5), "ratio = 1.5 lies outside (0, 1]"),
    ],
)
def test_an_error_has_the_value_and_what_may_be(check: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(says)}"):
        check()


def test_what_is_a_number() -> None:
    assert [is_whole(value) for value in (3, -3, 3.0, True, "3", None)] == [True, True, False, False, False, False]
    assert [is_whole(value, 1, 3) for value in (0, 1, 3, 4)] == [False, True, True, False]
    assert [is_number(value) for value in (3, 0.5, math.inf, math.nan, True)] == [True, True, False, False, False]
