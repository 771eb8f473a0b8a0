"""The compiled module: loading it, how many threads and which instructions it uses, and its scratch memory."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.native import cuda, shadow

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # enum DType in csrc/include/hvd_compress/types.hpp
FLOATS = tuple(CODES)
"""The dtypes of gradients: fp32, fp16 and bf16."""

if TYPE_CHECKING:
    from hvd_compress import _native

    compiled = _native
else:

    class _LazyModule:
        """Imports the compiled module at the first call, so that the package imports without it."""

        def __getattr__(self, name: str) -> Any:
            try:
                module = importlib.import_module("hvd_compress._native")
            except ImportError as error:
                build = "build them with `pip install .` in the checkout (it needs CMake and a C++17 compiler)"
                raise ConfigError(
                    f"the compiled kernels cannot be loaded ({error}); {shadow.remedy(shadow.KERNELS, build)}"
                ) from error
            try:
                found = getattr(module, name)
            except AttributeError:
                raise ConfigError(
                    f"the compiled kernels, {module.__file__}, were built for another version of hvd_compress and lack "
                    f"{name!r}: build them with `pip install .` in the checkout"
                ) from None
            setattr(self, name, found)  # asked for once
            return found

    compiled = _LazyModule()


def num_threads() -> int:
    """Return how many threads a kernel uses: HVD_COMPRESS_NUM_THREADS, or else as many as torch.

    Raises ConfigError where the variable is not a whole number from 1 to 1024.
    """
    text = os.environ.get("HVD_COMPRESS_NUM_THREADS", "").strip()
    if not text:
        return min(torch.get_num_threads(), _MAX_THREADS)
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= _MAX_THREADS:
        raise ConfigError(
            f"HVD_COMPRESS_NUM_THREADS = {text!r} is not a whole number in 1..{_MAX_THREADS}; unset it for as many as "
            "torch uses"
        )
    return int(text)


_MAX_THREADS = 1024

SIMD_LEVELS = ("portable", "avx2", "avx512")
"""What kernels are compiled for, from the least on; simd_levels() says what this machine has of them."""


def simd_levels() -> tuple[str, ...]:
    """Return the levels of vector instructions that this machine can run, the one in use by default last."""
    return SIMD_LEVELS[: compiled.best_simd_level() + 1]


def set_simd_level(name: str) -> None:
    """Let all kernels use another level, for tests and comparisons. Raises ConfigError for one that cannot run here."""
    if name not in SIMD_LEVELS or not compiled.set_simd_level(SIMD_LEVELS.index(name)):
        raise ConfigError(f"SIMD level {name!r} is not one of those that run here: {', '.join(simd_levels())}")


class _Scratch(threading.local):
    """What this thread keeps from call to call."""

    workspace = torch.empty(0, dtype=torch.uint8, device="cpu")


scratch = _Scratch()


def on(tensor: torch.Tensor) -> Any:
    """Return the kernels for the device where the tensor lies, all with the functions of _native.pyi."""
    return compiled if tensor.is_cpu else cuda.kernels(tensor.device)


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Whether kernels were built for this device; those of the CPU always are."""
    return device.type == "cpu" or cuda.LIBRARY.exists()


def prepare(size_bytes: int = 0, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return at least so many bytes of scratch memory where the tensor `like` lies, on the CPU without one.

    On the CPU, tell the kernels how many threads they may use. On a GPU, torch's own cache knows which stream still
    uses which memory.
    """
    if like is not None and not like.is_cpu:
        return torch.empty(size_bytes, dtype=torch.uint8, device=like.device)
    compiled.set_num_threads(num_threads())
    if scratch.workspace.numel() < size_bytes:
        scratch.workspace = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
    return scratch.workspace


def fed(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    """Return what every kernel with error feedback begins with."""
    return grad.data_ptr(), CODES[grad.dtype], residual.data_ptr(), out.data_ptr(), CODES[out.dtype], out.numel()


def memory(workspace: torch.Tensor) -> tuple[int, int]:
    """Return what every kernel with scratch memory ends with."""
    return workspace.data_ptr(), workspace.numel()
