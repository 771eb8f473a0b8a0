"""How the programs of this folder are launched in a lab, what each of their ranks begins with, and how they answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from hvd_compress.engines.base import Engine
    from hvd_compress.netlab import Lab

MARK = "found "
"""Begins a line that is an answer."""


def command(program: str, *words: object) -> list[str]:
    """Return the command that runs a program of this folder."""
    return [sys.executable, "-m", f"benchmarks.controller.{program}", *map(str, words)]


def environment(cache: str) -> dict[str, str]:
    """Return the environment of a job; curves of another network, kept in another cache, must not be found."""
    return {**os.environ, "HVD_COMPRESS_CACHE": cache, "OMP_NUM_THREADS": "1"}


def run(lab: Lab, program: str, *words: object) -> list[dict]:
    """Run a program of this folder on all hosts, and return what it found."""
    with tempfile.TemporaryDirectory() as cache:
        done = lab.run(command(program, *words), env=environment(cache), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{program} {' '.join(map(str, words))}: a rank ended with status {done.returncode}")
    return answers(done.stdout)


def answers(output: str) -> list[dict]:
    return [json.loads(line.removeprefix(MARK)) for line in output.splitlines() if line.startswith(MARK)]


def answer(engine: Engine, found: dict) -> None:
    """Tell who launched this job; by rank 0."""
    if engine.rank == 0:
        print(MARK + json.dumps(found), flush=True)


def begin() -> Engine:
    """Return the engine of this rank, which uses one thread."""
    os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")
    import torch

    from hvd_compress.engines.mpi_environment import prepare

    prepare()
    from hvd_compress.engines.mpi import MpiEngine

    torch.set_num_threads(1)
    return MpiEngine()


def gradient(engine: Engine, numel: int) -> torch.Tensor:
    """Return normal numbers, (numel,), others on each rank."""
    import torch

    return torch.randn(numel, generator=torch.Generator().manual_seed(engine.rank))
