"""Tests of the first level start no program, so that it stays one that is run before each commit."""

from __future__ import annotations

import subprocess

import pytest


def test_a_test_that_starts_a_program_is_told_to_be_of_the_second_level() -> None:
    with pytest.raises(AssertionError, match="mark it level2"):
        subprocess.run(["true"], check=False)


@pytest.mark.level1
def test_one_that_is_worth_its_time_may() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0
