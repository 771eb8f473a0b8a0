"""What the results of the doctor's probes mean, and what to do about them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvd_compress.cli.probes import Result, find_mpirun
from hvd_compress.extras import PACKAGES

OLDEST_TORCH = "2.4"
"""The oldest supported release, as pyproject.toml has it: sources on PYTHONPATH have no metadata to read it from."""


TCP_AFTER_IDLE = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")


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
    if (3, 10) <= version <= (3, 14):
        return Finding("Python", "ok", detail, required=True)
    return Finding("Python", "missing", detail, "use Python 3.10, 3.11, 3.12, 3.13 or 3.14", required=True)


def torch(found: Result) -> Finding:
    hint = f"torch {OLDEST_TORCH} or later is supported: pip install 'torch>={OLDEST_TORCH}'"
    if found.error:
        return Finding("torch", "missing", found.error, hint, required=True)
    version = found.values["version"]
    if is_too_old(version):
        hint += "; then build Horovod again, which must fit the torch that is there"
        return Finding("torch", "missing", f"{version} is too old", hint, required=True)
    return Finding("torch", "ok", version, required=True)


def is_too_old(version: str) -> bool:
    return _release(version) < _release(OLDEST_TORCH)


def _release(version: str) -> tuple[int, ...]:
    """Return (2, 13) of "2.13.0+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def horovod(found: Result) -> Finding:
    """hvd_compress.torch is made of horovod.torch. It needs one of Horovod's two ways to start ranks.

    Not required where it is not installed: torch.distributed carries gradients, too. One that is broken is a mistake.
    """
    if found.lacks("horovod"):
        hint = f"for `import hvd_compress.torch`: {PACKAGES['horovod'].remedy}"
        return Finding("Horovod", "note", "not installed", hint)
    if found.error:
        hint = f"build it again, for the torch that is there: {PACKAGES['horovod'].remedy}"
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
        "where ranks train on all cores of one host, try HOROVOD_CYCLE_TIME=20 with engine mpi (among hosts its thread "
        "gives way by itself); Horovod's own operations take up to as many milliseconds more then"
    )
    return [Finding(name, "note", f"compares notes over all ranks every {cycle_ms:g} ms, and polls meanwhile", hint)]


def mpi(found: Result, launcher: str | None = None) -> Finding:
    """Not required: without MPI, Gloo does, Horovod's or that of torch.distributed."""
    if found.lacks("mpi4py"):
        return Finding("MPI", "note", "mpi4py is not installed", f"for engine mpi: {PACKAGES['mpi4py'].remedy}")
    if found.error:
        hint = f"{PACKAGES['mpi4py'].remedy}; without it only collectives over Gloo work"
        return Finding("MPI", "missing", found.error, hint)
    values = found.values
    launcher = launcher or find_mpirun()
    detail = (
        f"{values['vendor']} {values['version']}, thread level {values['threads']}, launcher {launcher or 'not found'}"
    )
    if launcher is None:
        return Finding("MPI", "missing", detail, "put mpirun on PATH; it comes with the MPI library")
    if values["threads"] != "multiple":
        hint = "Horovod and the MPI engine call MPI from different threads: use an MPI with MPI_THREAD_MULTIPLE"
        return Finding("MPI", "note", detail, hint)
    return Finding("MPI", "ok", detail)


def slots(found: Result, mpi_found: Result) -> list[Finding]:
    """How many ranks mpirun starts without being told to start more. Other MPI libraries have no such limit."""
    if mpi_found.error or mpi_found.values["vendor"] != "Open MPI":
        return []
    name = "ranks of mpirun"
    if found.error:
        return [Finding(name, "note", f"how many it starts is not known: {found.error}")]
    count, hosts = found.values["slots"], found.values["hosts"]
    counted = f"the slots that it counts on {hosts} host{'s' * (hosts > 1)}: cores, unless a hostfile says otherwise"
    hint = (
        "for more ranks, `mpirun -np N --map-by :OVERSUBSCRIBE --bind-to none python train.py`; without these options "
        "it stops and says that there are not enough slots"
    )
    return [Finding(name, "note", f"at most {count}, {counted}", f"{hint}{_as_root()}")]


def _as_root() -> str:
    """Return what Open MPI asks of root alone, where that is not there."""
    lacking = [name for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") if name not in os.environ]
    if os.geteuid() != 0 or not lacking:
        return ""
    return f"; as root it starts none without {' and '.join(f'{name}=1' for name in lacking)} in the environment"


def localhost(found: Result) -> Finding:
    """Horovod's launcher looks the name up, also for ranks on this machine alone; mpirun does not."""
    if found.error:
        hint = (
            "add the line `127.0.0.1 localhost` to /etc/hosts: without, horovodrun takes it for another host and fails "
            "by ssh; mpirun does not need it"
        )
        return Finding("localhost", "note", f"does not resolve: {found.error}", hint)
    return Finding("localhost", "ok", found.values["address"])


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
        if torch_found.values["gloo"]:
            rows.append(Finding("engine gloo", "ok", "leaves the algorithm to torch.distributed"))
        elif horovod_found.error:
            hint = "install a torch that was built with torch.distributed and Gloo, or Horovod"
            rows.append(Finding("engine gloo", "missing", "this torch has no Gloo", hint, required=True))
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
    unbuilt = nvcc and devices and not built and not native_found.error
    hint = "install hvd_compress again, without HVD_COMPRESS_CUDA=0" if unbuilt else ""
    return Finding("CUDA kernels", "ok" if built and devices else "note", "; ".join(parts), hint)


def tcp_after_idle(setting: Path = TCP_AFTER_IDLE) -> list[Finding]:
    """Between two exchanges a connection is idle; nothing is said where no such setting can be read."""
    try:
        is_on = setting.read_text().strip() == "1"
    except OSError:
        return []
    name = "TCP after a pause"
    if not is_on:
        return [Finding(name, "ok", "connections go on with the window that they had")]
    detail = "a connection that was idle for 0.2 s or more begins with 10 packets again, in each step that takes longer"
    hint = "over slow or distant lines, on each host, as root: sysctl -w net.ipv4.tcp_slow_start_after_idle=0"
    return [Finding(name, "note", detail, hint)]


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
