"""Plans beside their predictions, as the benchmark measures them: the lab, a real MPI job, a page of what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.errors import UnsupportedError
from hvd_compress.netlab import Lab
from tests.benchmarks.scripts import load


def test_a_profile_plans_windows_and_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        Lab(1, "1ms", "1gbit").close()
    except UnsupportedError as error:
        pytest.skip(f"no network lab can be made here: {error}")
    lab = load("planner/lab.py", monkeypatch)
    short = lab.Job("a short one", "topk:ratio=0.01", (("1ms", "1gbit"),), skip=1, steps=3, window=1)
    monkeypatch.setattr(lab, "JOBS", {"example": short})
    monkeypatch.setattr(lab, "BUILD", tmp_path)
    monkeypatch.setattr(lab, "RESULT", tmp_path / "page.md")
    for words in (
        ["measure", "--jobs", "example", "--rounds", "2"],
        ["terms", "--job", "example", "--network", "0"],
        ["page"],
    ):
        result = CliRunner().invoke(lab.main, words)
        assert result.exit_code == 0, result.output
    page = (tmp_path / "page.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith(("| ours |", "| all-gather |"))]
    assert len(rows) == 2
    for _, name, _, predicted, measured, _, ratio, _ in rows:
        assert float(ratio) == pytest.approx(float(predicted) / float(measured), abs=0.006), name
    assert page.count(" plans of a prediction's error") == 1
    assert "communication, all buckets" in page
    found = json.loads((tmp_path / "terms.json").read_text())
    assert 0 < found["alone"] <= found["first"]
    assert 0 < found["busy"] <= 1
