"""The benchmarks of embeddings, with few steps."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.benchmarks.scripts import FOLDER, load


def ran(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("skew", ["bursts", "head"])
def test_the_planner(skew: str) -> None:
    words = ["--ranks", "2", "--batch-size", "256", "--lookaheads", "1,4", "--steps", "4", "--skew", skew]
    table = ran(sys.executable, str(FOLDER / "embedding" / "planner.py"), *words)
    assert f"skew {skew}" in table
    assert [line.split()[1] for line in table.splitlines()[-2:]] == ["1", "4"]


def test_what_a_step_waits_for() -> None:
    words = ["--ranks", "2", "--batch-size", "512", "--scale", "0.03", "--steps", "3", "--lookahead", "4"]
    table = ran(sys.executable, str(FOLDER / "embedding" / "critical.py"), *words)
    critical = [float(line.split("|")[2]) for line in table.splitlines()[-4:]]
    assert critical == sorted(critical, reverse=True)


def test_steps_by_every_way_to_keep_rows() -> None:
    words = ["--batch-size", "16", "--scale", "0.002", "--rounds", "2", "--window", "2"]
    job = ["mpirun", "-np", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", sys.executable]
    table = ran(*job, str(FOLDER / "embedding" / "lab.py"), *words)
    rows = {line.split()[1]: line.split("|") for line in table.splitlines() if line.startswith("| ")}
    assert {"resident", "sharded", "L=50", "not-delayed", "replicated-cache", "replicated-table"} <= rows.keys()
    critical = {name: float(cells[-4]) for name, cells in rows.items() if name not in ("rows", "---")}
    assert critical["resident"] == 0.0
    told = {name: float(rows[name][-2]) for name in critical}
    assert told["resident"] == told["sharded"] == 0.0 < told["L=50"]
    assert critical["L=50"] <= critical["not-delayed"] <= critical["replicated-cache"]


def test_without_torchrec_the_lab_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = load("embedding/lab.py", monkeypatch)
    monkeypatch.setitem(sys.modules, "torchrec", None)
    result = CliRunner().invoke(lab.main, ["--methods", "resident,torchrec"])
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert "pip install --no-deps -r requirements/torchrec.txt" in told
    assert (FOLDER.parent / "requirements" / "torchrec.txt").exists()


@pytest.mark.skipif(find_spec("torchrec") is None, reason="TorchRec is missing (requirements/torchrec.txt)")
def test_steps_by_torchrec() -> None:
    words = ["--batch-size", "16", "--scale", "0.002", "--rounds", "2", "--window", "2"]
    job = ["mpirun", "-np", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", sys.executable]
    methods = "resident,torchrec,torchrec-pipelined"
    table = ran(*job, str(FOLDER / "embedding" / "lab.py"), *words, "--methods", methods)
    rows = {line.split()[1]: line.split("|") for line in table.splitlines() if line.startswith("| ")}
    for name in ("torchrec", "torchrec-pipelined"):
        assert float(rows[name][2]) > 0.0
        assert [cell.strip() for cell in rows[name][-6:-1]] == ["-"] * 5


def test_speeds_of_precisions() -> None:
    table = ran(sys.executable, str(FOLDER / "embedding" / "precision.py"), "--rows", "64", "--repeats", "3")
    assert [line.split()[1] for line in table.splitlines()[-2:]] == ["bf16", "int8"]


def test_kills() -> None:
    told = ran(sys.executable, str(FOLDER / "embedding" / "kills.py"), "--kills", "2")
    assert "2 kills: " in told
    assert "those of a job that nobody killed" in told


def test_the_picture(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    methods = {"resident": [1.0, 1.1], "sharded": [2.0, 2.2], "L=1": [1.9, 2.0], "L=5": [1.5, 1.4]}
    rows.write_text("\n".join(json.dumps({"method": name, "taken": taken}) for name, taken in methods.items()))
    told = ran(sys.executable, str(FOLDER / "embedding" / "picture.py"), str(rows), str(tmp_path / "picture.png"))
    assert told.split("\n")[0] == "L = 1: 1.08"
    assert (tmp_path / "picture.png").stat().st_size > 5000
