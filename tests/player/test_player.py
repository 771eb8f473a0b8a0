"""The CUDA kernels with all threads at once (`make sanitize-rest`): results as in turn, and no access unordered."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

PARTS = 4
DEFECTS = {
    "missing-barrier": "race",
    "plain-add": "race",
    "other-block": "race",
    "divergence": "divergent-barrier",
    "misaligned": "misaligned",
    "another-thread": "another-threads-register",
    "hosts-memory": "hosts-memory",
}
"""What the player calls what is wrong with a kernel of defects_test.cpp."""


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import player

    return player


@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_at_once_do_what_they_do_in_turn(player: ModuleType, part: int) -> None:
    option = ("--part", f"{part}/{PARTS}")
    at_once, in_turn = player.play("played_at_once", *option), player.play("played_in_turn", *option)
    assert at_once.findings == []
    different = {name for name, checksum in in_turn.results.items() if at_once.results.get(name) != checksum}
    assert not different
    assert in_turn.results.keys() == at_once.results.keys()
    assert in_turn.results


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_order_of_threads_and_blocks_makes_no_difference(player: ModuleType, seed: int) -> None:
    only = ("--only", "fp16-fp32-3")
    at_once = player.play("played_at_once", *only, "--seed", str(seed))
    assert at_once.findings == []
    assert at_once.results == player.play("played_in_turn", *only).results


def test_a_kernel_without_a_defect_is_clean(player: ModuleType) -> None:
    assert player.play("played_defects", "none").findings == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_where_it_is(player: ModuleType, defect: str) -> None:
    findings = player.play("played_defects", defect).findings
    assert any(f"{DEFECTS[defect]} in " in finding and "defects_test.cpp" in finding for finding in findings), findings
