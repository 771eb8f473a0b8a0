"""The front ends with CUDA tensors, as far as they go without a GPU: jobs end, are left out or killed, and say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import ddp, front_ends


def report(tmp_path: Path, *arguments: str, status: int = 0) -> dict[str, dict]:
    file = tmp_path / "report.json"
    words = ["--device=cpu", "--width=16", f"--json={file}", *arguments]
    result = CliRunner().invoke(front_ends.main, words)
    assert result.exit_code == status, result.output
    return json.loads(file.read_text())


def test_jobs_find_what_they_look_for(tmp_path: Path) -> None:
    found = report(tmp_path, "--job=ddp", "--job=embedding")
    assert [job["faults"] for job in found.values()] == [[], []]
    assert list(found["ddp"]["figures"]) == ["plain", "fp16 hook", *ddp.COMPRESSIONS]
    by_owners = found["ddp"]["compared"][f"int4 by {ddp.OWNERS}"]["device"]
    assert by_owners["device"] == ["cpu"]
    assert ddp.OWNERS in by_owners["collective"][0]
    first, last = found["embedding"]["first and last loss"]
    assert last < first


def test_a_job_that_does_not_end_is_killed(tmp_path: Path) -> None:
    found = report(tmp_path, "--job=ddp", "--limit-s=1", status=1)
    assert found == {"ddp": {"failure": "no end within 1 s"}}


def test_a_missing_package_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers.py").write_text("raise ModuleNotFoundError('No transformers', name='transformers')")
    monkeypatch.syspath_prepend(tmp_path)  # processes that are spawned have it, too
    found = report(tmp_path, "--job=attention")
    assert found == {"attention": {"left out": "ModuleNotFoundError: No transformers"}}


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = CliRunner().invoke(front_ends.main, [])
    assert result.exit_code == 1
    assert "torch sees no GPU here" in result.output
