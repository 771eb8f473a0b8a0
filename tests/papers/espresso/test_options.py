"""The tree of options: counts by the recurrences of the sub-trees, structure, names and constraints."""

from __future__ import annotations

import itertools
import re

import pytest

from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.options import (
    UNCOMPRESSED,
    Constraints,
    Option,
    by_name,
    options,
)

ALL = options()
ONE_DEVICE = options(Constraints(devices=("training",)))
SECOND = {"reduce_scatter": "allgather", "alltoall": "allgather", "reduce": "broadcast", "gather": "broadcast"}
"""Of a pair of collectives over one link, by the first."""


@pytest.mark.parametrize("devices", [1, 2])
def test_counts_follow_the_recurrences(devices: int) -> None:
    d = devices
    t1 = 1 + d**2
    t2 = d + d * t1
    t5 = t1 + d * t2
    t3 = t1 + 2 * t5
    t4 = t2 + 2 * (t2 + d * t5)
    flat = 1 + 2 * t1 + d * (d + 2 * t2)
    hierarchical = 2 * (t3 + d * t4) + 2 * d * (d * (t3 + d * t4) + t4)
    found = options(Constraints(devices=("training", "host")[:d]))
    assert sum(not option.hierarchical for option in found) == flat
    assert sum(option.hierarchical for option in found) == hierarchical
    assert len(found) == {1: 174, 2: 4341}[d]


def test_nine_do_not_compress() -> None:
    assert [str(option) for option in ALL if not option.compressions] == [
        "allreduce@all",
        "reduce_scatter@all allgather@all",
        "reduce@all broadcast@all",
        "reduce_scatter@within allreduce@across allgather@within",
        "reduce_scatter@within reduce_scatter@across allgather@across allgather@within",
        "reduce_scatter@within reduce@across broadcast@across allgather@within",
        "reduce@within allreduce@across broadcast@within",
        "reduce@within reduce_scatter@across allgather@across broadcast@within",
        "reduce@within reduce@across broadcast@across broadcast@within",
    ]


def test_names_are_distinct_and_read_back() -> None:
    assert len({str(option) for option in ALL}) == len(ALL)
    for option in ALL[::97]:
        assert by_name(str(option)) == option
    with pytest.raises(PlanError, match=r"unknown option 'allreduce'; did you mean allreduce@all\?"):
        by_name("allreduce")


@pytest.mark.parametrize("option", ALL[::13], ids=str)
def test_an_option_is_valid(option: Option) -> None:
    """Only what is compressed is decompressed or travels as payloads, and steps of a pair belong together."""
    compressed = False
    open_steps: list[tuple[str, str]] = []
    for task in option.tasks:
        if task.verb in ("comp", "decomp"):
            assert compressed == (task.verb == "decomp")
            compressed = not compressed
            continue
        assert task.compressed == compressed
        if task.verb in SECOND:
            open_steps.append((task.link, SECOND[task.verb]))
        elif (task.link, task.verb) in open_steps or task.verb == "broadcast":
            assert open_steps.pop() == (task.link, task.verb)
    assert not compressed
    assert not open_steps
    places = [place for place, _ in itertools.groupby(task.link for task in option.tasks if task.communicates)]
    assert places in (["all"], ["within", "across", "within"])


def test_constraints_prune() -> None:
    few = options(Constraints(most_compressions=1))
    assert few
    assert all(option.compressions <= 1 for option in few)
    assert len(few) < len(ALL)
    assert all(len(option.devices) < 2 for option in options(Constraints(mixed=False)))
    assert all(option.hierarchical for option in options(Constraints(flat=False)))
    assert options(Constraints(only=(str(UNCOMPRESSED),))) == (UNCOMPRESSED,)
    assert options(Constraints(devices=())) == tuple(option for option in ALL if not option.compressions)
    with pytest.raises(PlanError, match="unknown device 'gpu'; known are training, host"):
        Constraints(devices=("gpu",))
    with pytest.raises(PlanError, match="unknown option 'ring'"):
        Constraints(only=("ring",))
    with pytest.raises(PlanError, match="no option is left"):
        options(Constraints(flat=False, hierarchical=False))


def test_moved_to_the_host() -> None:
    for option in ONE_DEVICE:
        moved = option.on("host")
        assert moved.devices <= {"host"}
        assert by_name(str(moved)) == moved
        assert moved.on("training") == option


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("allreduce@al", "allreduce@all"),
        ("comp@trainig allgather*@all decomp@training", "comp@training allgather*@all decomp@training"),
        ("comp@host allgather@all decomp@host", "comp@host allgather*@all decomp@host"),
    ],
)
def test_an_unknown_option_brings_the_one_that_was_meant(wrong: str, meant: str) -> None:
    with pytest.raises(PlanError, match=re.escape(f"unknown option {wrong!r}; did you mean {meant}?")):
        by_name(wrong)


def test_an_unknown_option_like_no_other_brings_where_they_are_listed() -> None:
    with pytest.raises(PlanError, match="`hvd-compress plan options` lists them"):
        by_name("xyzzy")


def test_an_unknown_device_brings_the_one_that_was_meant() -> None:
    with pytest.raises(PlanError, match=r"unknown device 'hots'; did you mean host\?"):
        Constraints(devices=("hots",))
    with pytest.raises(PlanError, match="unknown device 'gpu'; known are training, host"):
        Constraints(devices=("gpu",))


def test_constraints_that_leave_nothing_are_named_without_those_that_are_as_usual() -> None:
    with pytest.raises(PlanError, match=r"^no option is left: flat = False, hierarchical = False$"):
        options(Constraints(flat=False, hierarchical=False))
