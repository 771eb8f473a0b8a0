"""The build, on this machine and for its GPU alone: both kinds of kernels and cub's peer at the same time."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from benchmarks.frame.store import ROOT
from benchmarks.gpu import cub
from benchmarks.gpu.commands import require
from benchmarks.gpu.items import Item, LeftOutError

LIBRARY = "libhvd_compress_cuda.so"


def items(device: torch.device, folder: Path, headers: Path) -> dict[str, Item]:
    """Begin all builds; return one item each, which waits for it.

    Args:
        folder: for what is built outside the package.
        headers: of CCCL.
    """
    if device.type != "cuda":
        return {"kernels": partial(_leave_out, "without a GPU, `make native` builds them")}
    architecture = architecture_of(device)
    pool = ThreadPoolExecutor(3)
    host = pool.submit(build_host)
    gpu = pool.submit(build_gpu, folder / LIBRARY, architecture, host)
    peer = pool.submit(cub.build, headers, architecture, folder / "cub_topk.so")
    return {
        "kernels of the CPU": partial(_wait, host),
        "kernels of the GPU": partial(_wait, gpu),
        "cub::DeviceTopK": partial(_wait, peer),
    }


def is_built() -> bool:
    """Whether the package has kernels of both kinds for this Python."""
    package = ROOT / "hvd_compress"
    return all((package / name).exists() for name in (LIBRARY, f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"))


def _leave_out(reason: str) -> None:
    raise LeftOutError(reason)


def _wait(build: Future[None]) -> None:
    build.result()


def architecture_of(device: torch.device) -> str:
    """Return "90" of an H100 or H200."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}{minor}"


def build_host() -> None:
    """Build the package in place, but for its CUDA kernels: it removes those that are there."""
    words = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    require(words, environment={"HVD_COMPRESS_CUDA": "0"})


def build_gpu(library: Path, architecture: str, host: Future[None]) -> None:
    """Build the CUDA kernels, and put them into the package when that is built."""
    words = [sys.executable, "tools/build_cuda.py", str(library)]
    require(words, environment={"HVD_COMPRESS_CUDA_ARCH": architecture})
    host.exception()  # it tells by itself
    shutil.copy2(library, ROOT / "hvd_compress" / LIBRARY)
