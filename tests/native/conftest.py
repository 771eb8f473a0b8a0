"""Every test of the kernels runs at each level of vector instructions that the machine has, with several threads, and
on the CUDA kernels, played by the CPU: the best level plain, the portable one and the CUDA kernels with sanitizers; in
the second level of the tests the others, and the other way round.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress import native
from hvd_compress.errors import UnsupportedError
from hvd_compress.native import cuda, module

LEVELS = [(level, 1 + number) for number, level in enumerate(native.simd_levels())]
"""(level, threads): a fault in how work is divided shows at any level."""

TILES = "tiles"
"""CUDA kernels. From call to call, threads of a block take turns from the first to the last, or the other way round,
and top-k is done in another way."""

PLAYS = "HVD_COMPRESS_TILES" in os.environ
"""Whether CUDA kernels are to be played: set by tools/sanitize.py, and for faults in them by tools/mutants.py."""
FIRST = [LEVELS[0], TILES] if PLAYS else LEVELS[-1:]
REST = [level for level in (*LEVELS, TILES) if level not in FIRST]

BUILD = Path(__file__).parents[2] / "build" / f"native-{sys.implementation.cache_tag}"


class PlayedByCpu:
    """The CUDA kernels for tensors of the CPU; what has none yet is done as always."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._kernels = cuda.Kernels(library, torch.device("cpu"), self._turn_round)
        self._calls = 0
        self.way = ""
        """In which top-k is done, if not in all of them in turn."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._kernels, name)
        except UnsupportedError:
            return getattr(COMPILED, name)

    def _turn_round(self) -> int:
        """For the kernels, this is to ask for their stream."""
        self._calls += 1
        self._library.hvd_compress_set_backwards(self._calls % 2)
        self._kernels.force_topk(self.way or cuda.TOPK_WAYS[self._calls // 2 % len(cuda.TOPK_WAYS)])
        return 0


COMPILED = module.compiled


@pytest.fixture(
    scope="module",
    autouse=True,
    params=[*FIRST, *(pytest.param(level, marks=pytest.mark.level2) for level in REST)],
    ids=lambda p: "-".join(map(str, p)) if isinstance(p, tuple) else p,
)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == TILES:
            library = ctypes.CDLL(os.environ.get("HVD_COMPRESS_TILES", str(BUILD / "tiles.so")))
            patch.setattr(module, "compiled", PlayedByCpu(library))
            yield TILES
            return
        name, threads = request.param
        patch.setenv("HVD_COMPRESS_NUM_THREADS", str(threads))
        native.set_simd_level(name)
        yield name
        native.set_simd_level(native.simd_levels()[-1])
