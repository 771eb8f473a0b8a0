"""A time on the command line."""

from __future__ import annotations

import click
import pytest

from hvd_compress.papers.espresso.cli.seconds import Seconds


@pytest.mark.parametrize(("text", "found"), [("0", 0.0), ("0.5", 0.5), ("inf", float("inf"))])
def test_seconds(text: str, found: float) -> None:
    assert Seconds().convert(text, None, None) == found


@pytest.mark.parametrize("text", ["nan", "-NaN", "-1", "ten"])
def test_seconds_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)
