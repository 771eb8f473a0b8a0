"""The frame of the benchmarks: windows in turns, stores and tables; and a job of another checkout next to ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.frame import page, store, turns

ROOT = Path(__file__).parents[2]


class Played:
    """Ranks of one, and a clock that only steps move on: what happens is noted in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._ticks = 0
        monkeypatch.setattr(turns, "together", lambda: self.events.append("together"))
        monkeypatch.setattr(turns, "slowest", lambda number: self.events.append("slowest") or number)
        monkeypatch.setattr(turns.time, "perf_counter", self._read)

    def _read(self) -> int:
        self.events.append("clock")
        return self._ticks

    def step(self, ticks: int, name: str = "step") -> None:
        self.events.append(name)
        self._ticks += ticks


def test_every_kind_has_a_window_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    rows = turns.in_turns([lambda: played.step(1, "a"), lambda: played.step(10, "b")], count=2, length=3)
    assert rows == [[1, 10], [1, 10]], "in the order of kinds, not of turns"
    taken = "".join(event for event in played.events if event in ("a", "b"))
    assert taken == turns.WARM_UP * "a" + turns.WARM_UP * "b" + "aaabbb" + "bbbaaa"


def test_ranks_begin_a_window_together_after_the_steps_that_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert turns.window(lambda: played.step(5), length=4, before=2) == 5
    assert played.events == [*2 * ["step"], "together", "clock", *4 * ["step"], "clock", "slowest"]


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rounds.jsonl"
    assert (store.lines(file), store.read(file)) == ([], None)
    for number in (1, 2):
        store.append(file, {"number": number})
    assert store.lines(file) == [{"number": 1}, {"number": 2}]
    store.write(file, {"all": [1.5]})
    assert store.read(file) == {"all": [1.5]}
    assert [path.name for path in file.parent.iterdir()] == ["rounds.jsonl"]


def test_a_table() -> None:
    found = page.table(["method", "where", "ms"], [["int4", "lab", 1.5]], words=2)
    assert found == "| method | where | ms |\n| --- | --- | ---: |\n| int4 | lab | 1.5 |"
    assert page.ratio_cells([1.0, 1.0]) == ["1.000", "1.000 to 1.000"]
    assert page.ratio_cell([2.0, 2.0]) == "2.00 (2.00 to 2.00)"


@pytest.mark.parametrize("kind", ["in-process", "mpi", "ddp"])
def test_a_checkout_against_itself(kind: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "hvd_compress").symlink_to(ROOT / "hvd_compress")  # under another name: no rank may import that of the other
    words = f"--kind {kind} --ranks 2 --pairs 2 --steps 1 --numel 20000 --compressions int4".split()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps.paired", str(old), ".", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| int4 |")]
    assert min(float(cell) for cell in row.split("|")[2:5]) > 0
