"""The machine that figures are of, in words."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from hvd_compress import native


@functools.cache
def machine() -> str:
    """Return processor, vector instructions of the kernels, and torch's version."""
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return f"{model}, {native.simd_levels()[-1]}, torch {torch.__version__}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
