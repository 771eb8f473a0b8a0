"""The frame of the benchmarks: windows in turns, stores and tables; and a job of another checkout next to ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.frame import page, store, turns

ROOT = Path(__file__).parents[2]


def test_every_kind_has_a_window_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(turns, "slowest", lambda number: number)
    rows = turns.in_turns([lambda: taken.append("a"), lambda: taken.append("b")], count=2, length=3)
    assert [len(row) for row in rows] == [2, 2]
    assert "".join(taken) == turns.WARM_UP * "a" + turns.WARM_UP * "b" + "aaabbb" + "bbbaaa"


def test_steps_before_a_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[float] = []
    monkeypatch.setattr(turns, "slowest", lambda number: numbers.append(number) or number)
    clock = iter(range(100))
    monkeypatch.setattr(turns.time, "perf_counter", lambda: next(clock))
    assert turns.window(lambda: next(clock), length=4, before=2) == 5 / 4
    assert numbers == [0.0, 5 / 4], "ranks begin together"


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
def test_a_checkout_against_itself(kind: str) -> None:
    words = f"--kind {kind} --ranks 2 --pairs 2 --steps 1 --numel 20000 --compressions int4".split()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps.paired", ".", ".", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| int4 |")]
    assert min(float(cell) for cell in row.split("|")[2:5]) > 0
