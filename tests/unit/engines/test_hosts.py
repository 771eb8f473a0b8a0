"""Which ranks share a host, and its cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hvd_compress.engines import base, hosts
from hvd_compress.engines.hosts import share_cores, usable_cores
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks


@pytest.mark.parametrize(
    ("names", "cores", "expected"),
    [
        ("aa", [[0, 1], [0, 1]], False),
        ("aaa", [[0, 1], [0, 1], [0, 1]], True),
        ("aaa", [[0], [1], [2]], False),  # each is bound to a core of its own
        ("aa", [[3], [3]], True),
        ("ab", [[0], [0]], False),
        ("abab", [[0, 1], [0], [0, 1], [0]], True),  # on one of two hosts
        ("aa", [[], []], False),  # a system that does not tell
        ("a", [[0]], False),
    ],
)
def test_more_ranks_than_cores(names: str, cores: Sequence[Sequence[int]], expected: bool) -> None:
    assert share_cores(names, cores) is expected


@pytest.mark.parametrize(
    ("limit", "most"), [("max 100000\n", 99), ("200000 100000\n", 2), ("50000 100000\n", 1), ("250000 100000\n", 2)]
)
def test_a_container_has_the_cores_that_it_pays_for(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(hosts, "_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores() == list(range(8))[:most]
    monkeypatch.setattr(hosts, "_LIMIT", tmp_path / "none")
    assert usable_cores() == list(range(8))


@pytest.mark.parametrize(("cores", "expected"), [(2, True), (3, False)])
def test_all_ranks_know_whether_they_share_cores(cores: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so do the engines that are made of theirs."""
    monkeypatch.setattr(base, "usable_cores", lambda: list(range(cores)))

    def body(engine: InProcessEngine) -> list[bool]:
        assert not engine.shares_cores
        engine.locate()
        part = engine.split(engine.rank % 2)
        assert part is not None
        return [engine.shares_cores, part.shares_cores, engine.twin().shares_cores]

    assert run_ranks(3, body) == [[expected] * 3] * 3
