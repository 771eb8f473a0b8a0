"""`hvd-compress probe`, as a job of its own and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.store import JobShape
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.extras import PACKAGES
from hvd_compress.papers.espresso.cli import probe
from hvd_compress.profiler.curves import fit
from tests.unit.cost.played import follow
from tests.unit.test_extras import run_without

pytestmark = pytest.mark.level2

LIMIT_S = 600.0
"""Only what hangs takes so long."""
KEY = ("allreduce", "ring")
PROBE = [sys.executable, "-c", "from hvd_compress.cli.main import main; main()", "probe"]


def mpirun(n: int, *command: str, folder: object) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HVD_COMPRESS_CACHE": str(folder),
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    launcher = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-np", str(n)]
    return subprocess.run(
        [*launcher, *command], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_without_mpirun_one_sentence_says_how(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("OMPI_COMM", "PMI", "MPI_LOCAL"))]:
        monkeypatch.delenv(name)
    result = CliRunner().invoke(main, ["probe"])
    assert result.exit_code == 2
    assert "launch it as `mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none hvd-compress probe`" in result.output
    assert len(result.output.splitlines()) == 1


def test_without_mpi4py_one_sentence_says_what_is_missing():
    program = """
import os
from click.testing import CliRunner
from hvd_compress.cli.main import main
os.environ["PMIX_RANK"] = "0"  # as under mpirun
result = CliRunner().invoke(main, ["probe"])
print(result.exit_code, result.stderr.strip())
"""
    said = run_without(set(PACKAGES), program)
    assert said.startswith("2 Error: mpi4py is missing, which engine 'mpi' needs: pip install 'hvd_compress[mpi]'")


@pytest.mark.parametrize(
    ("flag", "says"), [("--budget=3", "--budget '3' has no unit: write it as 3s"), ("--timeout=-1s", "not negative")]
)
def test_bad_input_is_one_clear_message(flag, says):
    result = CliRunner().invoke(main, ["probe", flag])
    assert result.exit_code == 2
    assert says in result.output


def test_json_on_rank_0_and_the_file_that_it_leaves(tmp_path):
    job = mpirun(2, *PROBE, "--json", "--budget=0s", folder=tmp_path)
    assert job.returncode == 0, job.stderr
    found = json.loads(job.stdout)
    assert found["shape"]["world_size"] == 2
    assert len(found["curves"]) == 13  # five broadcasts, five allreduces, three all-gathers
    assert found["alpha_s"] >= 0
    assert found["beta_s_per_byte"] >= 0
    (saved,) = (tmp_path / "curves").iterdir()
    (state,) = json.loads(saved.read_text())["states"]
    assert state["curves"] == found["curves"]


@pytest.mark.usefixtures("clock")
def test_hosts_are_known_as_in_a_session():
    """Or what "auto" is would not be what training uses."""

    def body(engine):
        probe._curves(engine, 0.0)
        return engine.capabilities.hosts

    assert run_ranks(3, body) == [(0, 0, 0)] * 3


def test_alpha_and_beta_are_those_of_the_network():
    def body(engine):
        follow(engine, Formulas(1e-3, 1e-8, 3), slower=1 + engine.rank)  # the mean over ranks; of broadcasts the last
        return fit(probe._curves(engine, 0.0)[0])

    first, *others = run_ranks(3, body)
    assert others == [first] * 2
    assert 2e-3 < first[0] < 3e-3
    assert 2e-8 < first[1] < 3e-8


def test_the_table_marks_what_was_not_measured(capsys):
    curves = Curves(2, {KEY: Curve((1024, 4096), (0.001, 0.004)), ("broadcast", "auto"): Curve((1024,), (0.002,))})
    probe._print(curves, JobShape("MPI", 2, ("a", "b"), "Open MPI v5"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks on 2 hosts, Open MPI v5"
    assert lines[1].startswith("alpha ")
    assert lines[-3].split() == ["1", "KiB", "4", "KiB"]
    assert lines[-2].split() == ["allreduce", "ring", "1", "4"]
    assert lines[-1].split() == ["broadcast", "auto", "2", "~2"]


def test_a_rank_that_reports_nothing_ends_the_job_with_an_error(tmp_path):
    """It makes the engine as all do, and then sleeps instead of measuring."""
    sleeper = (
        "import os, time\n"
        "from hvd_compress.cost.calibrate import Calibrator\n"
        "from hvd_compress.papers.espresso.cli import probe\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "    Calibrator.run = lambda self: time.sleep(1000)\n"
        "probe.command(['--budget=0s', '--timeout=2s'])\n"
    )
    job = mpirun(2, sys.executable, "-c", sleeper, folder=tmp_path)
    assert job.returncode != 0
    assert "waited 2 s in" in job.stderr
    assert "another rank has died, is stopped, or reports nothing" in job.stderr
