"""Whole jobs that are profiled and planned: by mpirun, by torchrun."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.papers.espresso.planning import plan
from hvd_compress.profiler.profiles import CompressorProfile, ModelProfile, SystemProfile, read
from tests.jobs.launch import LAUNCHERS, launch
from tests.papers.espresso.profiler.test_jobs import FRONT_ENDS, PROGRAM, RANKS, SKIP, STEPS, profile

pytestmark = pytest.mark.level2


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
    plain = launch(launcher, PROGRAM, front_end, ranks=RANKS)
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
    run = launch("torchrun", PROGRAM, "planned", str(file), ranks=2, **variables)
    assert run.status == 0, run.output
    assert "the plan was made for engine" not in run.output
    picture = tmp_path / "both.png"
    compared = CliRunner().invoke(main, ["plan", "compare", str(file), str(timeline), "--picture", str(picture)])
    assert compared.exit_code == 0, compared.output
    for term in ("computation, all buckets", "communication, all buckets", "step"):
        assert re.search(rf"^ ?{term} +[\d.]+ +[\d.]+ +[\d.]+ *$", compared.output, re.MULTILINE), compared.output
    assert picture.read_bytes().startswith(b"\x89PNG")
