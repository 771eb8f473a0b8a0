"""The example of docs/planner.md runs, with profiles of a small model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvd_compress.planner.baselines import POLICIES
from hvd_compress.planner.profiles import write
from tests.unit.planner.test_baselines import FAST_GPU, SLOW, model

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "profile"
    folder.mkdir()
    for name, profile in (("model", model((10_000, 5.0))), ("system", SLOW), ("compressor", FAST_GPU)):
        write(folder / f"{name}.json", profile)
    monkeypatch.chdir(tmp_path)
    code = "\n".join(line[4:] for line in PAGE.read_text().splitlines() if line.startswith("    "))
    exec(compile(code, str(PAGE), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(POLICIES) + 2
    assert lines[-2].startswith("Upper Bound ")


def test_the_page_has_all_policies() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text().partition("## Policies")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([^`]*)`", row)} == set(POLICIES)
