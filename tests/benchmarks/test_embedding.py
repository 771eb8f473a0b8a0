"""The benchmarks of embeddings, with few steps."""

from __future__ import annotations

import subprocess
import sys

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
