"""The check of the CUDA kernels, as far as it goes without a GPU: its inputs and calls are good, and it sees faults."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
from click.testing import CliRunner

from hvd_compress import native

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_cpu_agrees_with_itself(check: ModuleType) -> None:
    assert check.parity(torch.device("cpu"), rounds=6) > 500


def test_a_difference_is_told(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    topk, calls = native.topk, []

    def wrong_every_other_time(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices, values = topk(x, k)
        calls.append(k)
        return indices, values + len(calls) % 2

    monkeypatch.setattr(native, "topk", wrong_every_other_time)
    with pytest.raises(click.ClickException, match="topk differs in result 1: seed 0"):
        check.parity(torch.device("cpu"), rounds=1)


def test_without_a_gpu_it_says_so(check: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: make gpu-check says more")
    result = CliRunner().invoke(check.main)
    assert result.exit_code == 1
    assert "torch sees no GPU here" in result.output


def test_the_page_names_every_kernel(check: ModuleType) -> None:
    figure = {
        "kernel": "topk_accumulate", "ms": 0.4, "floor_ms": 0.28, "times_floor": 1.43, "bound_ms": 0.45,
        "torch_ms": 9.0, "copy_tb_s": 4.3,
    }  # fmt: skip
    report = {"card": "H200", "torch": "2", "parity": 3, "sanitizers": {"memcheck": "clean"}, "figures": [figure]}
    assert "| topk_accumulate | 0.400 | 0.280 | 1.43 | 0.45 | 9.00 |" in check.page(report)
