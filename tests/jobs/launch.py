"""Jobs of their own: what ends a job, or happens before it begins, cannot be tested from within one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
CHECKOUT = Path(__file__).parents[2]
LIMIT_S = 600.0
"""Only what hangs takes so long."""

LAUNCHERS = {
    "mpirun": ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-np"],
    "horovodrun": ["horovodrun", "--gloo", "-np"],
    "horovodrun over MPI": ["horovodrun", "--mpi", "-np"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node"],
}
NEEDS_LOCALHOST = "horovodrun fails where localhost does not resolve: add the line `127.0.0.1 localhost` to /etc/hosts"
_GRACE_S = 120.0
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Job:
    """A job that has ended by itself.

    Attributes:
        status: the launcher's exit status.
        output: of all ranks and the launcher.
        survivors: processes of ranks that were still there a while after the launcher had ended.
        files: names of what its ranks have left in $JOB_FOLDER.
    """

    status: int
    output: str
    survivors: list[int]
    files: set[str]


def launch(
    launcher: str,
    program: str | Path,
    *arguments: str,
    ranks: int = 2,
    interrupt_at: str | None = None,
    **variables: str,
) -> Job:
    """Run a program, by default one of `programs`, on some ranks, and wait for the end.

    Every program writes its process number to a file in $JOB_FOLDER. The job gets Ctrl-C when there is a file of the
    name `interrupt_at`. Raises AssertionError, after everything has been killed, for a job that does not end. Skips the
    test where this machine cannot start such a job.
    """
    if launcher.startswith("horovodrun"):
        require_localhost()
    with tempfile.TemporaryDirectory(prefix="hvd_compress-job-") as folder:
        script = program if isinstance(program, Path) else PROGRAMS / f"{program}.py"
        command = [*LAUNCHERS[launcher], str(ranks), sys.executable, str(script), *arguments]
        environment = {
            **os.environ, **_ROOT, "OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
            "HVD_COMPRESS_ADAPT": "0",
            "PYTHONPATH": str(CHECKOUT), "JOB_FOLDER": folder, **variables,
        }  # fmt: skip
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        try:
            if interrupt_at:
                _interrupt(process, Path(folder, interrupt_at))
            output, _ = process.communicate(timeout=LIMIT_S)
        except BaseException as error:  # Ctrl-C included: never leave a job running behind our back
            process.kill()
            _kill(_pids(folder))
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            text = (error.stdout or b"").decode(errors="replace")
            raise AssertionError(f"the job did not end within {LIMIT_S:.0f} s; it printed:\n{text}") from None
        survivors = _wait_for_end(_pids(folder))
        _kill(survivors)
        return Job(process.returncode, output, survivors, set(os.listdir(folder)))


def _heed_interrupts() -> None:
    """For a new process: a shell has what it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(process: subprocess.Popen[str], file: Path) -> None:
    """Send the launcher, and what shares its process group, what a terminal sends for Ctrl-C."""
    deadline = time.monotonic() + LIMIT_S
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if file.exists():
        os.killpg(process.pid, signal.SIGINT)


def require_localhost() -> None:
    """Skip the test where horovodrun cannot start, or is not there."""
    if shutil.which("horovodrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("Horovod is not installed")
    try:
        socket.gethostbyname("localhost")
    except OSError:
        pytest.skip(NEEDS_LOCALHOST)


def _pids(folder: str) -> list[int]:
    return [int(path.read_text()) for path in Path(folder).glob("*.pid")]


def _wait_for_end(pids: list[int]) -> list[int]:
    """Return those that are still alive after some seconds."""
    deadline = time.monotonic() + _GRACE_S
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [pid for pid in pids if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # as it ends
        return False
    return state != "Z"


def _kill(pids: list[int]) -> None:
    for pid in pids:
        if _is_alive(pid):
            os.kill(pid, signal.SIGKILL)
