"""What only whole jobs can show: how they end when a rank is gone, and that MPI needs no preparation here.

Each test starts its own launcher, so these run outside of one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from hvd_compress.engines import mpi_environment
from tests.jobs.launch import require_localhost

pytestmark = pytest.mark.level2

LIMIT_S = 600.0
"""Only what hangs takes so long."""

GIVE_UP = """
import os, signal, sys, threading, time
import torch
if sys.argv[1] == "mpi":
    from hvd_compress.engines.mpi import MpiEngine as Engine
else:
    import horovod.torch as hvd
    hvd.init()
    from hvd_compress.engines.horovod import HorovodEngine as Engine
engine = Engine()
engine.allreduce(torch.ones(4))
if engine.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP) if sys.argv[2] == "stopped" else time.sleep(1000)
thread = threading.Thread(target=engine.allreduce, args=(torch.ones(100000),), daemon=True)
thread.start()
while not engine.running:
    time.sleep(0.01)
engine.abandon()
raise RuntimeError("gave up " + engine.pending)
"""

ALGORITHMS = """
from hvd_compress.engines.mpi import MpiEngine
engine = MpiEngine()
if engine.rank == 0:
    print("algorithms:", *engine.capabilities.algorithms)
"""

FORCIBLE = """
from hvd_compress.engines.mpi import forcible_algorithms
print(*forcible_algorithms())
"""


def environment() -> dict[str, str]:
    """The environment without the launcher's and without what `prepare` sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": os.getcwd()}


def run(launcher: list[str], script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if launcher and shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not there")
    command = [*launcher, sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
    )


MPIRUN = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]


@pytest.mark.parametrize(
    ("launcher", "engine", "other"),
    [
        ([*MPIRUN, "-np", "2"], "mpi", "stopped"),
        ([*MPIRUN, "-np", "2"], "horovod", "asleep"),
        (["horovodrun", "--gloo", "-np", "2"], "horovod", "asleep"),
    ],
    ids=["mpi", "horovod-over-mpi", "horovod-over-gloo"],
)
def test_an_abandoned_job_ends_by_itself_with_a_status_and_a_traceback(launcher, engine, other):
    """Without abandon() the exit waits for ever: MPI_Finalize and Horovod's shutdown both wait for the other rank."""
    if launcher[0] == "horovodrun":
        require_localhost()
    job = run(launcher, GIVE_UP, engine, other)
    assert job.returncode != 0
    said = job.stdout + job.stderr  # mpirun's own words may come between any two of a traceback
    assert "RuntimeError: " in said
    assert "gave up allreduce (auto) of 400000 bytes" in said


def test_open_mpi_takes_the_switch_without_preparation():
    """Nothing in the environment: `prepare` was forgotten, or MPI ran before."""
    job = run([*MPIRUN, "-np", "3"], ALGORITHMS)
    assert "algorithms: ring tree recursive_doubling rabenseifner" in job.stdout, job.stderr


def test_one_process_can_tell_what_can_be_forced():
    job = run([], FORCIBLE)
    assert job.stdout.split() == ["ring", "tree", "recursive_doubling", "rabenseifner"], job.stderr


def test_prepare_keeps_what_the_user_has_set(monkeypatch):
    name = "OMPI_MCA_coll_tuned_use_dynamic_rules"
    monkeypatch.delenv(name, raising=False)
    mpi_environment.prepare()
    assert os.environ[name] == "1"
    monkeypatch.setenv(name, "0")
    mpi_environment.prepare()
    assert os.environ[name] == "0"
