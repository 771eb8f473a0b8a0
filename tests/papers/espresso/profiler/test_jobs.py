"""Whole jobs that are profiled: by mpirun, by torchrun, and through `hvd-compress profile`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.jobs.launch import CHECKOUT, LAUNCHERS, LIMIT_S

pytestmark = pytest.mark.level2

STEPS, SKIP = "4", "2"
FRONT_ENDS = [("mpirun", "horovod"), ("torchrun", "ddp")]
"""Launcher and front end."""
RANKS = 2
PROGRAM = Path(__file__).parents[1] / "programs" / "profiled.py"
COMMAND = [sys.executable, "-c", "from hvd_compress.cli.main import main; main()", "profile"]


def profile(*words: str, folder: Path, program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `hvd-compress profile`, whose job has a folder for what it leaves there."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    own = {"OMP_NUM_THREADS": "1", "HVD_COMPRESS_CALIBRATION_S": "0.1", "JOB_FOLDER": str(folder)}
    return subprocess.run(
        [*COMMAND, *words, "--", *program],
        env={**os.environ, **root, **own, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_the_command_says_what_the_backward_pass_can_hide(tmp_path: Path) -> None:
    def run(ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
        program = [*LAUNCHERS["torchrun"], str(ranks), sys.executable, str(PROGRAM), "ddp"]
        return profile("--ccr", *words, folder=tmp_path, program=program)

    done = run(2, "--steps", "2", "--skip", "3")
    assert done.returncode == 0, done.stderr
    found = re.search(r"CCR ([\d.e+-]+): ([\d.]+) ms of exchanges beside a backward pass of ([\d.]+) ms", done.stdout)
    assert found, done.stdout
    ratio, communicate_ms, backward_ms = map(float, found.groups())
    assert ratio == pytest.approx(communicate_ms / backward_ms, rel=0.02)
    assert "; 2 steps" in done.stdout
    assert "by the clock of each rank, with its waits for others: " in done.stdout

    short = run(1, "--skip", "100")
    assert short.returncode == 2
    assert "Error: no ratio: " in short.stderr
    assert "3 steps after the first 100" in short.stderr

    broken = profile("--ccr", folder=tmp_path, program=[sys.executable, "-c", "raise SystemExit(3)"])
    assert broken.returncode == 3
    assert "Error: no ratio: the program has ended with exit code 3 before it was found" in broken.stderr
