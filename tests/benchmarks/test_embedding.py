"""The benchmarks of embeddings, with few steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.scripts import FOLDER


def ran(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_planner() -> None:
    words = ["--ranks", "2", "--batch-size", "256", "--lookaheads", "1,4", "--steps", "4"]
    table = ran(sys.executable, str(FOLDER / "embedding" / "planner.py"), *words)
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
    critical = {name: float(cells[-3]) for name, cells in rows.items() if name not in ("rows", "---")}
    assert critical["resident"] == 0.0
    assert critical["L=50"] <= critical["not-delayed"] <= critical["replicated-cache"]


def test_kills() -> None:
    told = ran(sys.executable, str(FOLDER / "embedding" / "kills.py"), "--kills", "2")
    assert "2 kills: " in told
    assert "those of a job that nobody killed" in told


def test_the_picture(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    methods = {"resident": [1.0, 1.1], "sharded": [2.0, 2.2], "L=1": [1.9, 2.0], "L=5": [1.5, 1.4]}
    rows.write_text("\n".join(json.dumps({"method": name, "taken": taken}) for name, taken in methods.items()))
    ran(sys.executable, str(FOLDER / "embedding" / "picture.py"), str(rows), str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 5000
