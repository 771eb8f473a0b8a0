"""The check of the CUDA kernels, as far as it goes without a GPU: its inputs and calls are good, and it sees faults."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
from click.testing import CliRunner

from hvd_compress import native
from tests.benchmarks.scripts import load


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("gpu/check.py", monkeypatch)


def test_the_cpu_agrees_with_itself(check: ModuleType) -> None:
    assert check.parity(torch.device("cpu"), rounds=6, largest=16_384) > 500


def test_a_difference_is_told(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    topk, calls = native.topk, []

    def wrong_every_other_time(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices, values = topk(x, k)
        calls.append(k)
        return indices, values + len(calls) % 2

    monkeypatch.setattr(native, "topk", wrong_every_other_time)
    with pytest.raises(click.ClickException, match="topk, auto differs in result 1: seed 0"):
        check.parity(torch.device("cpu"), rounds=1)


def test_without_a_gpu_it_says_so(check: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: make gpu-check says more")
    result = CliRunner().invoke(check.main)
    assert result.exit_code == 1
    assert "torch sees no GPU here" in result.output


def report(**changes: object) -> dict[str, object]:
    figure = {
        "kernel": "topk_accumulate", "ms": 0.4, "floor_ms": 0.28, "times_floor": 1.43, "of_bandwidth": 0.7,
        "bound_ms": 0.45, "within": False, "torch_ms": 9.0, "cub_ms": 1.5, "copy_tb_s": 4.3,
    }  # fmt: skip
    other = {**figure, "kernel": "mstopk", "bound_ms": None, "within": True, "cub_ms": None}
    return {
        "card": "H200", "torch": "2", "parity": 3, "graphs": 5, "sanitizers": {"memcheck": "clean"}, "training": "ran",
        "figures": [figure, other], "queue": [{"numel": 65536.0, "k": 64.0, "queue": 0.02, "bracket": 0.05}],
    } | changes  # fmt: skip


def test_the_page_names_every_kernel(check: ModuleType) -> None:
    page = check.page(report())
    assert "| topk_accumulate | 0.400 | 0.280 | 70% | 0.45 ! | 9.00 | 1.50 |" in page
    assert "| mstopk | 0.400 | 0.280 | 70% |  | 9.00 |  |" in page
    assert "| 65,536 | 64 | 0.020 | 0.050 |" in page


def test_what_is_known_so_far_is_written(check: ModuleType, tmp_path: Path) -> None:
    early = report(sanitizers=dict.fromkeys(check.SANITIZERS, check.NOT_YET), queue=[], training=check.NOT_YET)
    page = check.write(early, tmp_path / "results", tmp_path / "raw")
    assert page.name == "gpu-h200.md"
    assert (tmp_path / "raw" / "gpu-h200.json").exists()
    assert [path.name for path in page.parent.iterdir()] == [page.name]
    assert check.NOT_YET in page.read_text()


def test_a_sanitizer_or_a_training_that_fails_fails_the_check(check: ModuleType) -> None:
    assert check.faults(report()) == []
    assert check.faults(report(sanitizers={"racecheck": "not run: no compute-sanitizer on PATH"})) == []
    assert check.faults(report(sanitizers={"racecheck": "exit code 9: hazard"})) == ["racecheck: exit code 9: hazard"]
    assert check.faults(report(training="exit code 1: lost")) == ["exit code 1: lost"]
    assert check.faults(report(training="equal; the example: exit code 1: lost"))


def test_without_mpirun_it_still_trains(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over Gloo, which any torch has."""
    ran: list[list[str]] = []
    monkeypatch.setattr(check.shutil, "which", lambda *arguments, **options: None)
    monkeypatch.setattr(check, "_outcome", lambda words, *rest: ran.append(words) or "equal")
    assert check.train() == "equal; the example: not run: no mpirun on PATH"
    assert [Path(words[1]).name for words in ran] == ["training.py"]


def test_a_failing_command_is_told_by_its_last_line(check: ModuleType) -> None:
    words = [sys.executable, "-c", "import sys; print('first'); sys.exit('last')"]
    assert check._outcome(words, dict(os.environ), "clean").startswith("exit code 1: ")
    assert check._outcome([sys.executable, "-c", ""], dict(os.environ), "clean") == "clean"


def test_without_cccl_there_is_no_cub(check: ModuleType, tmp_path: Path) -> None:
    assert check.build_cub(tmp_path) is None
