"""What the doctor tries out, each probe in a process of its own with a time limit.

Importing torch, starting MPI or entering a namespace can crash, hang, or change the process that does it; here it is
not the doctor's. Importing torch takes the most of most probes: they are forked from a few processes that have.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from hvd_compress.cli import trials

TIMEOUT_S = 60.0
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


@dataclass(frozen=True)
class Result:
    """What a probe found, or in `error` why it found nothing."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def lacks(self, package: str) -> bool:
        """Whether `package` is not installed, rather than broken."""
        return self.error == f"ModuleNotFoundError: No module named {package!r}"


def _torch() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gloo = dist.is_available() and dist.is_gloo_available()
    return {"version": torch.__version__, "cuda": torch.version.cuda, "devices": devices, "gloo": gloo}


def _mpi() -> dict[str, Any]:
    from mpi4py import MPI

    levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
    vendor, version = MPI.get_vendor()
    return {
        "vendor": vendor,
        "version": ".".join(map(str, version)),
        "library": MPI.Get_library_version().rstrip("\0"),
        "threads": levels.get(MPI.Query_thread(), "multiple"),
    }


def find_mpirun() -> str | None:
    """Also beside this Python: an environment that was not activated is not on PATH."""
    return shutil.which("mpirun") or shutil.which("mpirun", path=sysconfig.get_path("scripts"))


def _slots() -> dict[str, Any]:
    """What mpirun of Open MPI counts: cores, unless a hostfile, a resource manager or a variable says otherwise."""
    mpirun = find_mpirun()
    if mpirun is None:
        raise FileNotFoundError("no mpirun")
    command = [mpirun, "--allow-run-as-root", "--display-allocation", "-np", "1", "true"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    *_, allocation = done.stdout.split("ALLOCATED NODES")
    slots = re.findall(r"\bslots=(\d+)", allocation)
    if done.returncode != 0 or not slots:
        said = next((line for line in done.stdout.splitlines() if line.strip(" -=")), "nothing")
        raise RuntimeError(f"mpirun ended with {done.returncode}, and said: {said.strip()}")
    return {"slots": sum(map(int, slots)), "hosts": len(slots)}


def _localhost() -> dict[str, Any]:
    """Look the name up as horovodrun does."""
    return {"address": socket.gethostbyname("localhost")}


def _algorithms() -> dict[str, Any]:
    from hvd_compress.engines.mpi import forcible_algorithms

    return {"forcible": list(forcible_algorithms())}


def _native() -> dict[str, Any]:
    import torch

    from hvd_compress import native
    from hvd_compress.native import cuda, module

    indices, values = native.topk(torch.tensor([1.0, -3.0, 2.0]), 2)
    answer = (indices.tolist(), values.tolist())
    if answer != ([1, 2], [-3.0, 2.0]):
        raise ValueError(f"top-2 of [1, -3, 2] came out as {answer}")
    return {
        "file": module.compiled.__file__,
        "simd": native.simd_levels()[-1],
        "cuda_library": str(cuda.LIBRARY) if cuda.LIBRARY.exists() else None,
    }


def _namespaces() -> dict[str, Any]:
    """Enter a network namespace; it ends with this process and nothing outside ever sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, flags in (("direct", CLONE_NEWNET), ("user", CLONE_NEWUSER | CLONE_NEWNET)):
        if libc.unshare(flags) == 0:
            return {"kind": kind, "tun": _tun_opens()}
    raise PermissionError(os.strerror(ctypes.get_errno()))


def _tun_opens() -> bool:
    """Permission bits do not tell: a container may forbid the device all the same."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError:
        return False
    return True


LIBRARIES = ("lightning", "accelerate", "transformers")
"""Each has a module of its name in hvd_compress.integrations."""

PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "horovod": trials.horovod,
    "ddp": trials.ddp,
    "fsdp": trials.fsdp,
    "nccl": trials.nccl,
    **{name: functools.partial(trials.library, name, f"hvd_compress.integrations.{name}") for name in LIBRARIES},
    "mpi": _mpi,
    "slots": _slots,
    "localhost": _localhost,
    "algorithms": _algorithms,
    "native": _native,
    "namespaces": _namespaces,
}


WITHOUT_TORCH = ("mpi", "slots", "localhost", "namespaces")

_PROGRAM = """\
import sys
_, name, *sys.path = sys.argv
import json
from hvd_compress.cli import probes
print(json.dumps(probes.PROBES[name]()))
"""

_FORKING = """\
import sys
_, names, *sys.path = sys.argv
from hvd_compress.cli import probes
probes.fork_each(names.split(","))
"""


def run_all() -> dict[str, Result]:
    """Run all probes, side by side as far as there are cores."""
    cores = os.cpu_count() or 1
    forked = [name for name in PROBES if name not in WITHOUT_TORCH]
    with ThreadPoolExecutor(cores) as pool:
        shares = pool.map(_run_forked, filter(None, (forked[core::cores] for core in range(cores))))
        alone = dict(zip(WITHOUT_TORCH, pool.map(run, WITHOUT_TORCH), strict=True))
        return alone | {name: result for share in shares for name, result in share.items()}


def run(name: str, timeout_s: float = TIMEOUT_S) -> Result:
    """Run the probe `name` in a process of its own.

    It imports from where this process does: else sources in the current folder would be examined in the place of the
    package that is installed.
    """
    return _result(*_ended(_PROGRAM, name, timeout_s), timeout_s)


def _run_forked(names: Sequence[str]) -> dict[str, Result]:
    """Run probes one behind the other, forked from one process, which has imported torch."""
    code, output, complaints = _ended(_FORKING, ",".join(names), TIMEOUT_S * (1 + len(names)))
    told = {name: Result(**found) for name, found in map(json.loads, output.splitlines())}
    if told.keys() >= set(names):
        return told
    ended = _result(code, output, complaints, TIMEOUT_S)  # torch crashed or hung while it was imported
    return {name: told.get(name, ended) for name in names}


def fork_each(names: Sequence[str]) -> None:
    """For the process that has torch: run each probe in a child, and print a line of JSON with what it found."""
    for module in ("torch", "torch._dynamo"):  # the latter is imported by optimizers and DDP
        with contextlib.suppress(Exception):  # who needs it says so
            importlib.import_module(module)
    for name in names:
        print(json.dumps([name, asdict(_forked(name))]), flush=True)


def _forked(name: str) -> Result:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        child = os.fork()
        if child == 0:
            _be_a_probe(name, output.fileno(), complaints.fileno())
        code = _wait(child)
        for file in (output, complaints):
            file.seek(0)
        return _result(code, output.read(), complaints.read(), TIMEOUT_S)


def _be_a_probe(name: str, output: int, complaints: int) -> NoReturn:
    os.setsid()  # with all that it starts, it can be ended
    os.dup2(output, sys.stdout.fileno())
    os.dup2(complaints, sys.stderr.fileno())
    code = 1
    try:
        print(json.dumps(PROBES[name]()), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def _wait(child: int) -> int | None:
    """Return the exit code, negative for a signal, or nothing where its time was over and it was killed."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)


def _ended(program: str, argument: str, timeout_s: float) -> tuple[int | None, str, str]:
    """Run a program of ours; return its exit code, or nothing where its time was over, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, argument, *sys.path],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with helpers that MPI may have started
        output, complaints = process.communicate()
        return None, output, complaints
    return process.returncode, output, complaints


def _result(code: int | None, output: str, complaints: str, timeout_s: float) -> Result:
    if code is None:
        return Result(error=f"no answer within {timeout_s:.0f} s")
    if code < 0:
        return Result(error=f"crashed with {signal.Signals(-code).name}")
    if code > 0:
        lines = complaints.strip().splitlines()
        return Result(error=lines[-1] if lines else f"exit code {code}")
    # The last line: libraries may print above it.
    return Result(values=json.loads(output.splitlines()[-1]))
