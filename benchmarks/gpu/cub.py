"""cub::DeviceTopK, the peer of top-k: built from cub_topk.cu, and called on torch's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu.commands import require
from benchmarks.gpu.items import LeftOutError
from hvd_compress import native

SOURCE = Path(__file__).with_name("cub_topk.cu")
HEADER = Path("cub", "device", "device_topk.cuh")


def build(headers: Path, architecture: str, library: Path) -> None:
    """Compile for one architecture, such as "90". Raises LeftOutError without headers, CommandError where nvcc fails.

    Args:
        headers: folder that holds cub/ of CCCL 3.2 or later.
    """
    if not (headers / HEADER).exists():
        raise LeftOutError(f"{headers} holds no CCCL of 3.2 or later")
    library.parent.mkdir(parents=True, exist_ok=True)
    words = ["nvcc", "-std=c++17", "-O3", f"-arch=sm_{architecture}", "-shared", "-cudart", "static"]
    words += ["-Xcompiler", "-fPIC", "-I", str(headers), str(SOURCE), "-o", str(library)]
    require(words)


class CubTopk:
    """The built library."""

    def __init__(self, library: Path) -> None:
        """Raises OSError where it cannot be loaded."""
        self._topk = ctypes.CDLL(str(library)).cub_topk
        pointer = ctypes.c_void_p
        size = ctypes.POINTER(ctypes.c_size_t)
        self._topk.argtypes = [
            pointer, ctypes.c_longlong, ctypes.c_int, pointer, pointer, pointer, size, pointer,
        ]  # fmt: skip

    def on(self, x: torch.Tensor, k: int) -> Callable[[], None]:
        """Return what selects from x, in memory that is made here. Raises ValueError where it finds other values."""
        indices = torch.empty(k, dtype=torch.int32, device=x.device)
        magnitudes = torch.empty(k, device=x.device)
        size = ctypes.c_size_t()

        def call(workspace: int | None) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            arguments = (x.data_ptr(), x.numel(), k, indices.data_ptr(), magnitudes.data_ptr(), workspace)
            status = self._topk(*arguments, ctypes.byref(size), stream)
            if status != 0:
                raise RuntimeError(f"cub::DeviceTopK says CUDA error {status}")

        call(None)
        workspace = torch.empty(size.value, dtype=torch.uint8, device=x.device)

        def select() -> None:
            call(workspace.data_ptr())

        select()
        expected = native.topk(x, k)[1].abs().sort().values
        if not torch.equal(magnitudes.sort().values, expected):
            raise ValueError("cub::DeviceTopK finds other magnitudes than native.topk")
        return select
