"""The training on a shared GPU, as far as it goes without one: ranks start and agree, and a difference is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import training
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.request.request import Request

CPU = torch.device("cpu")


def test_ranks_meet_over_gloo_and_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ["--device=cpu", "--transport=gloo", "--numel=2003", "--width=8", "--repetitions=1", f"--json={file}"]
    result = CliRunner().invoke(training.main, arguments)
    assert result.exit_code == 0, result.output
    (report,) = json.loads(file.read_text()).values()
    compressions = [figure["compression"] for figure in report["figures"]]
    assert compressions == [name for name, request in training.REQUESTS.items() if request.device == "auto"]
    assert report["equal"] == 2 * len(training.DTYPES) * training.STEPS * len(compressions)
    assert "| topk, STAR |" in result.output


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced, calls = training.reduced, []

    def wrong_every_other_time(*arguments: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
        calls.append(arguments)
        return [(gradient + len(calls) % 2, residual) for gradient, residual in reduced(*arguments)]

    def body(engine: object) -> tuple[int, list[str]]:
        request: Request = training.REQUESTS["topk, STAR"]
        return training.compare(engine, CPU, "star", request, 2003)

    every = 2 * len(training.DTYPES) * training.STEPS
    assert run_ranks(1, body) == [(every, [])]
    monkeypatch.setattr(training, "reduced", wrong_every_other_time)
    ((equal, different),) = run_ranks(1, body)
    assert equal == every // 2  # residuals
    assert [text.split(" differs")[0] for text in different] == [
        f"rank 0, star, {dtype}: the gradient of step 0" for dtype in training.DTYPES
    ]


def test_a_report_with_a_difference_is_written_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {
        "device": "CPU", "torch": "2", "ranks": 2, "transport": "gloo", "equal": 3, "figures": [],
        "different": ["rank 1, star: the gradient differs"],
    }  # fmt: skip
    limits: list[float] = []
    monkeypatch.setattr(training, "run", lambda transport, limit_s, **options: limits.append(limit_s) or found)
    file = tmp_path / "report.json"
    arguments = ["--device=cpu", "--transport=gloo", "--limit-s=7", f"--json={file}"]
    result = CliRunner().invoke(training.main, arguments)
    assert result.exit_code == 1
    assert limits == [7.0]
    assert "Error: rank 1, star: the gradient differs" in result.output
    assert json.loads(file.read_text()) == {"gloo": found}


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: make gpu-check says more")
    result = CliRunner().invoke(training.main, [])
    assert result.exit_code == 1
    assert "torch sees no GPU here; --device cpu plays this without one" in result.output
