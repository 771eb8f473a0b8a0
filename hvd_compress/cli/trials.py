"""What the doctor tries: torch and the kernels, and each front end, by a step or an import, in a process of its own.

Importing torch, starting MPI or loading a library can crash, hang, or change the process that does it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

LIMIT_S = 60.0
"""Of a trial."""
COLLECTIVE_S = 20.0
"""Of a collective: on one host a step takes milliseconds."""
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of them is there where torch can use a GPU, of any maker and under WSL."""
NO_GPU = "torch finds no GPU here"
TWO_RANKS = {"tried": "a step of 2 ranks on this host"}


@dataclass(frozen=True)
class Result:
    """What a trial found, or in `error` why it failed."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def lacks(self, package: str) -> bool:
        """Whether a package is not installed, rather than broken."""
        return self.error == f"ModuleNotFoundError: No module named {package!r}"


def torch() -> dict[str, Any]:
    import torch

    return {"version": torch.__version__, "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0}


def native() -> dict[str, Any]:
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


def horovod() -> dict[str, Any]:
    """A step of the drop-in by this rank alone, on the runtime that there is."""
    import torch

    import hvd_compress.torch as hvd
    from hvd_compress.frontends.horovod.runtime_selection import RUNTIME, WHY

    transports = [name for name, built in (("MPI", hvd.mpi_built), ("Gloo", hvd.gloo_built)) if built()]
    if not transports:
        raise SystemExit("Horovod was built with neither MPI nor Gloo")
    hvd.init()
    model = torch.nn.Linear(8, 8)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=hvd.Compression.int8()
    )
    model(torch.ones(8)).sum().backward()
    optimizer.step()
    runtime = "a runtime of this package"
    if RUNTIME == "horovod":
        runtime = f"Horovod {importlib.metadata.version('horovod')} with {' and '.join(transports)}"
    return {"tried": f"a step of one rank on {runtime}: {WHY}"}


def ddp() -> dict[str, Any]:
    """A step of DistributedDataParallel between two processes over gloo."""
    importlib.import_module("hvd_compress.ddp")  # once, for both
    return _on_two_ranks(_step_of_ddp)


def _step_of_ddp() -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import hvd_compress.ddp as hc

    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    hc.compress(model, hc.Compression.int8())
    model(torch.ones(8)).sum().backward()


def fsdp() -> dict[str, Any]:
    """A step of FSDP2 between two processes over gloo."""
    importlib.import_module("hvd_compress.fsdp")
    return _on_two_ranks(_step_of_fsdp)


def _step_of_fsdp() -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    hc = importlib.import_module("hvd_compress.fsdp")
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    hc.compress(model, hc.Compression.int8())
    model(torch.ones(8)).sum().backward()


def nccl() -> dict[str, Any]:
    """A sum on a GPU. Of one rank: a second one would need a second GPU."""
    if not any(map(os.path.exists, DRIVERS)):
        raise SystemExit(NO_GPU)
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    with tempfile.TemporaryDirectory() as folder:
        _join("nccl", folder, 0, 1)
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
    return {"tried": f"a sum on one of {torch.cuda.device_count()} GPUs"}


def mpi() -> dict[str, Any]:
    """The engine, by this rank alone."""
    from mpi4py import MPI

    launcher = find_mpirun()
    if launcher is None:
        raise SystemExit("mpirun is not on PATH")
    from hvd_compress.engines.mpi import MpiEngine

    MpiEngine().close()
    vendor, version = MPI.get_vendor()
    return {"tried": f"{vendor} {'.'.join(map(str, version))}, launcher {launcher}"}


def find_mpirun() -> str | None:
    """Also next to this Python: an environment that was not activated is not on PATH."""
    return shutil.which("mpirun") or shutil.which("mpirun", path=sysconfig.get_path("scripts"))


def library(name: str, module: str) -> dict[str, Any]:
    """A library, imported with the module of ours for it."""
    importlib.import_module(name)
    importlib.import_module(module)
    return {"tried": f"{name} {importlib.metadata.version(name)} imports"}


LIBRARIES = ("lightning", "accelerate", "transformers")
"""Each has a module of its name in hvd_compress.integrations."""

TRIALS: dict[str, Callable[[], dict[str, Any]]] = {
    **{each.__name__: each for each in (torch, native, horovod, ddp, fsdp, nccl, mpi)},
    **{name: partial(library, name, f"hvd_compress.integrations.{name}") for name in LIBRARIES},
}


def _join(backend: str, folder: str, rank: int, size: int) -> None:
    import torch.distributed as dist

    place, timeout = f"file://{folder}/meeting", timedelta(seconds=COLLECTIVE_S)
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=size, timeout=timeout)


def _on_two_ranks(step: Callable[[], None]) -> dict[str, Any]:
    """Run `step` on both ranks of a process group over gloo: this process and its child. Nothing ran in it before."""
    import torch

    importlib.import_module("torch._dynamo")  # takes the most of a step, which imports it: once, for both
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank = int(child == 0)
        try:
            _join("gloo", folder, rank, 2)
            step()
        except BaseException:
            if rank == 0:
                os.kill(child, signal.SIGKILL)  # or it says, after this, what only follows from it
                os.waitpid(child, 0)
                raise
            traceback.print_exc()
            os._exit(1)
        if rank == 1:
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise RuntimeError(f"the other rank ended with {status}")
    return TWO_RANKS


_PROGRAM = """\
import sys
_, name, *sys.path = sys.argv
import json
from hvd_compress.cli import trials
print(json.dumps(trials.TRIALS[name]()))
"""


def run_all() -> dict[str, Result]:
    """Run all trials, side by side as far as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(TRIALS, pool.map(run, TRIALS), strict=True))


def run(name: str, limit_s: float = LIMIT_S) -> Result:
    """Run a trial in a process of its own.

    It imports from where this process does: else sources in the current folder would be examined instead of the
    package that is installed.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, name, *sys.path],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, complaints = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
        process.communicate()
        return Result(error=f"no answer within {limit_s:.0f} s")
    if process.returncode < 0:
        return Result(error=f"crashed with {signal.Signals(-process.returncode).name}")
    if process.returncode > 0:
        return Result(error=(complaints.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
    return Result(values=json.loads(output.splitlines()[-1]))  # libraries may print before it
