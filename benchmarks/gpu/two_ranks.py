"""Training with two ranks on the one GPU, by training.py and the example, each in processes of its own."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.frame.store import ROOT
from benchmarks.gpu.commands import CommandError, require, run
from benchmarks.gpu.items import FaultyError, Item, LeftOutError
from benchmarks.gpu.scales import Scale

TRAINING = "benchmarks.gpu.training"
EXAMPLE = ROOT / "examples" / "train_images.py"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as in a container


def items(device: torch.device, scale: Scale, limit_s: float) -> dict[str, Item]:
    """Return one item for each transport, and one for the example. Each ends within `limit_s`."""
    return {
        **{f"over {name}": partial(compared, name, device, scale, limit_s) for name in ("gloo", "mpi")},
        "the example": partial(example, device, limit_s),
    }


def compared(transport: str, device: torch.device, scale: Scale, limit_s: float) -> object:
    """Compare with a training on the CPU, and time steps; return the report of training.py."""
    _require("pydantic")
    if transport == "mpi":
        _mpirun()
        _require("mpi4py")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words = [sys.executable, "-m", TRAINING, f"--device={device.type}", f"--transport={transport}"]
        words += [f"--json={report}", f"--limit-s={limit_s}"]
        words += [f"--{name}={value}" for name, value in scale.training.items()]
        ended = run(words)
        if not report.exists():
            raise CommandError(f"{TRAINING}: {ended.told}")
        found = json.loads(report.read_text())[transport]
        if ended.status != 0:
            raise FaultyError(f"{len(found['different'])} results are not the CPU's: {found['different'][0]}", found)
        return found


def example(device: torch.device, limit_s: float) -> object:
    """Run the example for one epoch, through Horovod's interface."""
    mpirun = _mpirun()
    _require("horovod")
    words = [mpirun, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-np", "2", sys.executable, str(EXAMPLE)]
    words += ["--device", device.type, "--compression", "star", "--epochs", "1"]
    require(words, environment=AS_ROOT, limit_s=limit_s)
    return "ran"


def _mpirun() -> str:
    found = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if found is None:
        raise LeftOutError("no mpirun on PATH")
    return found


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise LeftOutError(f"no package {package}")
