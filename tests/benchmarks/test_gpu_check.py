"""The check of the CUDA kernels as a command, as far as it goes without a GPU: every part runs, and no failure of one
hides the others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import check, commands, parts, running
from benchmarks.gpu.report import Report

CHECK = [sys.executable, "-m", "benchmarks.gpu.check"]
ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHECK, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def test_every_part_runs_on_a_cpu_against_itself(tmp_path: Path) -> None:
    """All but the build, and training, which has its own tests, so that no slip is found on a GPU that is lent."""
    names = ("build", "parity", "large", "timings", "graphs", "queue")
    ended = run("run", "--device=cpu", "--scale=tiny", f"--out={tmp_path}", *(f"--part={name}" for name in names))
    assert ended.returncode == 0, ended.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-cpu.md", "report.json", "log.txt"}
    parts = json.loads((tmp_path / "report.json").read_text())["parts"]
    outcomes = {(name, item): outcome for name, part in parts.items() for item, outcome in part["items"].items()}
    assert {(name, item) for name, item in outcomes if "value" not in outcomes[name, item]} <= {
        ("build", "kernels"),
    }  # fmt: skip
    assert list(parts) == list(names)
    page = (tmp_path / "gpu-cpu.md").read_text()
    for line in (
        "| build | 1 |  | 1 |", "| accumulate | 72 | 3 | 3 |", "| topk_accumulate, ratio 0.001, 64 MiB | 16,384 |",
        "The tail of topk_accumulate, 64 MiB (16,384 elements", "| 4,096 | 64 |",
    ):  # fmt: skip
        assert line in page, line


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: make gpu-check says more")
    monkeypatch.setattr(check.signal, "signal", lambda *arguments: None)
    for command in ("run", "sanitizers"):
        result = CliRunner().invoke(check.main, [command])
        assert result.exit_code == 1
        assert "torch sees no GPU here" in result.output


def test_who_ends_it_ends_what_it_has_started(tmp_path: Path) -> None:
    words = [*CHECK, "run", "--device=cpu", "--part=parity", f"--out={tmp_path}"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert any("good" in line for line in started.stdout)  # a minute of work is left
        (part,) = psutil.Process(started.pid).children()
        started.terminate()
        assert started.wait(20) == 128 + signal.SIGTERM
    assert not part.is_running()
    assert "value" in json.loads((tmp_path / "report.json").read_text())["parts"]["parity"]["items"].popitem()[1]


PROGRAM = """\
import os, sys, time
from pathlib import Path
from benchmarks.gpu.items import FaultyError, LeftOutError, work

def differ(): raise ValueError("differs")
def lack(): raise LeftOutError("no mpirun")
def fault(): raise FaultyError("missed", 7)
def crash(): print("illegal address", flush=True); os._exit(9)
def hang(): time.sleep(60)

options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[3:])
items = {{name: {{"good": int, "long": lambda: time.sleep(1)}}.get(name.rstrip("0123456789")) or globals()[name]
         for name in {names!r}}}
usable = lambda: os._exit(5) if {lost} else None
sys.exit(not work(items, Path(options["journal"]), options["after"], usable))
"""


@pytest.fixture
def run_items(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return what runs the part "parity" with other items, and gives the report."""
    facts = {"card": "H200", "torch": "2", "cuda": "13", "scale": "full", "command": "check"}

    def start(*names: str, limit_s: float | None = None, lost: bool = False, item_s: float = 3.0) -> Any:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.format(names=names, lost=lost))
        monkeypatch.setattr(running, "CHECK", (str(program),))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setitem(parts.PARTS, "parity", parts.Part(1.0, item_s, lambda place: {}))
        report = Report(tmp_path / "out", facts)
        running.Runner(report, [], limit_s).run("parity")
        return report

    return start


def outcomes(report: Any) -> dict[str, tuple[str, object]]:
    items = json.loads((report.log.parent / "report.json").read_text())["parts"]["parity"]["items"]
    kinds = ("failure", "left_out", "value")
    return {name: next((kind, item[kind]) for kind in kinds if kind in item) for name, item in items.items()}


def test_a_failure_hides_no_other_item(run_items: Any) -> None:
    report = run_items("differ", "good1", "lack", "fault", "good2")
    assert outcomes(report) == {
        "differ": ("failure", "ValueError: differs"), "good1": ("value", 0), "lack": ("left_out", "no mpirun"),
        "fault": ("failure", "missed"), "good2": ("value", 0),
    }  # fmt: skip
    assert report.failures == ["parity, differ: ValueError: differs", "parity, fault: missed"]
    page = report.page.read_text()
    assert "- parity, differ: ValueError: differs" in page
    assert "- parity, lack: no mpirun" in page
    assert "| parity | 5 | 2 | 1 |" in page


def test_a_process_that_ends_or_hangs_costs_one_item(run_items: Any) -> None:
    report = run_items("good1", "crash", "good2", "hang", "good3", item_s=1.5)
    assert outcomes(report) == {
        "good1": ("value", 0), "crash": ("failure", "the process ended with status 9: illegal address"),
        "good2": ("value", 0), "hang": ("failure", "no end within 1.5 s: silent"), "good3": ("value", 0),
    }  # fmt: skip


def test_where_the_device_is_lost_another_process_goes_on(run_items: Any) -> None:
    assert outcomes(run_items("differ", "good1", lost=True)) == {
        "differ": ("failure", "ValueError: differs"),
        "good1": ("value", 0),
    }


def test_a_part_that_cannot_begin_is_told(run_items: Any) -> None:
    report = run_items("no_such_function")
    assert report.failures == ["parity: the process ended with status 1: KeyError: 'no_such_function'"]


def test_at_the_limit_the_rest_is_left_out_and_the_report_is_there(run_items: Any) -> None:
    begun_s = time.monotonic()
    report = run_items("good1", "long1", "hang", "good2", limit_s=8.0, item_s=60.0)  # 5 s are for the end
    assert time.monotonic() - begun_s < 8.0
    assert outcomes(report) == {
        "good1": ("value", 0), "long1": ("value", None), "hang": ("left_out", "the time was up"),
        "good2": ("left_out", "the time was up"),
    }  # fmt: skip
    assert report.failures == []


def test_a_part_is_not_begun_without_the_time_that_it_needs(run_items: Any) -> None:
    report = run_items("good1", limit_s=5.5)
    assert report.found["parts"]["parity"] == {"items": {}, "left_out": "0 s were left, and it needs 1"}
    assert "| parity |  |  | 0 s were left, and it needs 1 |  |" in report.page.read_text()


def test_a_report_goes_on_with_that_of_the_same_card(tmp_path: Path) -> None:
    facts = {"card": "H200", "torch": "2", "cuda": "13", "scale": "full", "command": "check"}
    first = Report(tmp_path, facts)
    first.begin("parity")
    first.item("parity", "topk", {"value": 3, "seconds": 1.0})
    assert Report(tmp_path, facts, goes_on=True).found == first.found
    assert Report(tmp_path, {**facts, "card": "H100"}, goes_on=True).found["parts"] == {}
    assert Report(tmp_path, facts).found["parts"] == {}
    assert json.loads((tmp_path / "report.json.before").read_text())["facts"]["card"] == "H100", "minutes of a GPU"


def test_a_page_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    facts = {"card": "H200", "torch": "2", "cuda": "13", "scale": "full", "command": "check"}
    report = Report(tmp_path, facts)
    report.begin("queue")
    report.item("queue", "4,096 elements", {"value": 3})  # no rows
    assert report.page.read_text() == (
        "This page cannot be written: TypeError: 'int' object is not iterable. See report.json.\n"
    )


def test_a_failing_command_is_told_by_its_last_line() -> None:
    said: list[str] = []
    words = [sys.executable, "-c", "import sys; print('first', flush=True); sys.exit('last')"]
    with pytest.raises(commands.CommandError, match=r"python.*: exit status 1: last"):
        commands.require(words, say=said.append)
    assert "".join(said) == "first\nlast\n"
    sleeping = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    ended = commands.run(sleeping, limit_s=2.0, alone=True, say=said.append)
    assert (ended.status, ended.told) == (None, "ended at its limit: begun")
