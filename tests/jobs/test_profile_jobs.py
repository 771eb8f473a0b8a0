"""Whole jobs that are profiled: by mpirun, by torchrun, and through `hvd-compress profile`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.planner.planning import plan
from hvd_compress.planner.profiles import CompressorProfile, ModelProfile, SystemProfile, read
from tests.jobs.launch import CHECKOUT, LAUNCHERS, LIMIT_S, launch

STEPS, SKIP = "4", "2"
FRONT_ENDS = [("mpirun", "horovod"), ("torchrun", "ddp")]
"""Launcher and front end."""
RANKS = 2
PROGRAM = CHECKOUT / "tests" / "jobs" / "programs" / "profiled.py"
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


@pytest.mark.parametrize(("launcher", "front_end"), FRONT_ENDS)
def test_a_profile_of_a_job_is_written_and_planned_with(launcher: str, front_end: str, tmp_path: Path) -> None:
    """And what is trained is what an unprofiled job trains, on all ranks."""
    words = ["--steps", STEPS, "--skip", SKIP, "-o", str(tmp_path)]
    words += ["--compressor", "efsign"] if launcher == "mpirun" else []
    launched = [*LAUNCHERS[launcher], str(RANKS), sys.executable, str(PROGRAM), front_end]
    done = profile(*words, folder=tmp_path, program=launched)
    assert done.returncode == 0, done.stderr
    assert "model.json: 6 tensors, 2,603 elements, 4 steps; forward " in done.stdout
    assert f"compressor.json: {'efsign' if launcher == 'mpirun' else 'topk'}, training: compress " in done.stdout
    assert "system.json: 1 host(s) of 2 rank(s); within: alpha " in done.stdout
    plain = launch(launcher, "profiled", front_end, ranks=RANKS)
    profiled = done.stdout + done.stderr
    trained = [re.findall(r"trained to (\w{64})", output) for output in (profiled, plain.output)]
    assert len(trained[0]) == len(trained[1]) == RANKS
    assert len({*trained[0], *trained[1]}) == 1
    assert "the profile is complete, and training goes on" in profiled

    model, system = read(tmp_path / "model.json", ModelProfile), read(tmp_path / "system.json", SystemProfile)
    assert (model.model, model.steps) == ("profiled", int(STEPS))
    assert {tensor.name.removeprefix("module.") for tensor in model.tensors} == {
        f"{layer}.{part}" for layer in (0, 2, 4) for part in ("weight", "bias")
    }
    assert [tensor.name for tensor in model.tensors][-1].startswith("0."), "the first layer's gradients are the last"
    assert (system.hosts, system.ranks_per_host) == (1, RANKS)
    assert system.engine == {"mpirun": "mpi", "torchrun": "torch"}[launcher]
    assert {tensor.dtype for tensor in model.tensors} == {"float32"}
    assert {curve.verb for curve in system.within.curves} >= {"allreduce", "reduce_scatter", "allgather", "alltoall"}
    planned = plan(model, system, read(tmp_path / "compressor.json", CompressorProfile), budget_s=0.2)
    assert planned.end_ns > 0
    if front_end == "ddp":
        check_planned_job(tmp_path)


def check_planned_job(tmp_path: Path) -> None:
    """A planned job of DDP is compared, with a bucket for each parameter, after DDP has made its buckets anew."""
    file, timeline = tmp_path / "plan.json", tmp_path / "run.json"
    make = ["plan", "make", str(tmp_path), "-o", str(file), "--no-fusion", "--budget", "0.5"]
    made = CliRunner().invoke(main, make)
    assert made.exit_code == 0, made.output
    assert "over engine torch" in made.output
    variables = {"HVD_COMPRESS_TIMELINE": str(timeline), "HVD_COMPRESS_TIMELINE_EVERY": "1"}
    run = launch("torchrun", "profiled", "planned", str(file), ranks=2, **variables)
    assert run.status == 0, run.output
    assert "the plan was made for engine" not in run.output
    picture = tmp_path / "both.png"
    compared = CliRunner().invoke(main, ["plan", "compare", str(file), str(timeline), "--picture", str(picture)])
    assert compared.exit_code == 0, compared.output
    for term in ("computation, all buckets", "communication, all buckets", "step"):
        assert re.search(rf"^ ?{term} +[\d.]+ +[\d.]+ +[\d.]+ *$", compared.output, re.MULTILINE), compared.output
    assert picture.read_bytes().startswith(b"\x89PNG")


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
