"""The benchmark of embeddings, with few steps."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]


def ran(*words: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_steps_by_every_way_to_keep_rows() -> None:
    words = ["--batch-size", "16", "--scale", "0.002", "--rounds", "2", "--window", "2"]
    job = ["mpirun", "-np", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", sys.executable]
    table = ran(*job, "-m", "benchmarks.embedding.lab", *words)
    rows = {line.split()[1]: line.split("|") for line in table.splitlines() if line.startswith("| ")}
    assert {"resident", "sharded", "L=50", "not-delayed", "replicated-cache", "replicated-table"} <= rows.keys()
    critical = {name: float(cells[-4]) for name, cells in rows.items() if name not in ("rows", "---")}
    assert critical["resident"] == 0.0
    told = {name: float(rows[name][-2]) for name in critical}
    assert told["resident"] == told["sharded"] == 0.0 < told["L=50"]
    assert critical["L=50"] <= critical["not-delayed"] <= critical["replicated-cache"]


def test_without_torchrec_the_lab_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.embedding import lab  # imports Horovod, which no other test here needs

    monkeypatch.setitem(sys.modules, "torchrec", None)
    result = CliRunner().invoke(lab.main, ["--methods", "resident,torchrec"])
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert "pip install --no-deps -r requirements/torchrec.txt" in told
    assert (ROOT / "requirements" / "torchrec.txt").exists()


@pytest.mark.skipif(find_spec("torchrec") is None, reason="TorchRec is missing (requirements/torchrec.txt)")
def test_steps_by_torchrec() -> None:
    words = ["--batch-size", "16", "--scale", "0.002", "--rounds", "2", "--window", "2"]
    job = ["mpirun", "-np", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", sys.executable]
    methods = "resident,torchrec,torchrec-pipelined"
    table = ran(*job, "-m", "benchmarks.embedding.lab", *words, "--methods", methods)
    rows = {line.split()[1]: line.split("|") for line in table.splitlines() if line.startswith("| ")}
    for name in ("torchrec", "torchrec-pipelined"):
        assert float(rows[name][2]) > 0.0
        assert [cell.strip() for cell in rows[name][-6:-1]] == ["-"] * 5
