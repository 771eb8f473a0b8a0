"""The CUDA kernels: a library with a C interface, loaded when a CUDA tensor first meets a kernel.

Whatever a kernel finds out it leaves in memory of its device, and the host waits for the device only where somebody
looks into it: is all finite, or how many reach a threshold, is a tensor; bad indices are for check_pending(). The coder
looks itself: how long codes are, and whether what came are codes.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from hvd_compress.errors import UnsupportedError
from hvd_compress.native import shadow
from hvd_compress.native.faults import Faults

LIBRARY = Path(__file__).resolve().parent.parent / "libhvd_compress_cuda.so"

TOPK_WAYS = ("auto", "queue", "bracket", "radix")
"""enum TopkWay of csrc/include/hvd_compress/topk.hpp."""

_OK, _LAUNCH_FAILED = 0, 7
_STATUS = {
    1: "a dtype, or a pair of dtypes, that it has no code for",
    2: "a size out of range",
    3: "more elements than int32 indices reach",
    4: "too small a workspace",
}
_POINTER, _INT, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

# The parameters of each function of csrc/cuda/interface.cu, the stream at the end excepted.
_PARAMETERS: dict[str, list[type]] = {
    "accumulate": [_POINTER, _INT, _POINTER, _POINTER, _INT, _SIZE, _POINTER],
    "scale": [_POINTER, _INT, _SIZE, _FLOAT, _POINTER],
    "topk": [_POINTER, _INT, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE],
    "topk_accumulate": [
        _POINTER, _INT, _POINTER, _POINTER, _INT, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE,
    ],
    "sign_accumulate": [_POINTER, _INT, _POINTER, _POINTER, _INT, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE],
    "sign_accumulate_kept": [
        _POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE,
    ],
    "sign_add": [_POINTER, _POINTER, _POINTER, _INT, _SIZE, _FLOAT],
    "quantize_accumulate": [
        _POINTER, _INT, _POINTER, _POINTER, _INT, _SIZE, _INT, _INT, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32,
        _POINTER, _POINTER, _POINTER, _SIZE,
    ],
    "quantize_add": [_POINTER, _POINTER, _POINTER, _INT, _SIZE, _INT, _FLOAT],
    "block_quantize": [
        _POINTER, _INT, _POINTER, _POINTER, _SIZE, _INT, _SIZE, _INT, _INT, ctypes.c_uint64, ctypes.c_uint32,
        ctypes.c_uint32, _POINTER, _POINTER,
    ],
    "block_sum": [_POINTER, _INT, _SIZE, _INT, _SIZE, _FLOAT, _POINTER, _INT, _POINTER],
    "block_sum_quantize": [
        _POINTER, _INT, _POINTER, _INT, _INT, _POINTER, _SIZE, _INT, _SIZE, _INT, _INT, ctypes.c_uint64,
        ctypes.c_uint32, ctypes.c_uint32, _POINTER, _POINTER,
    ],
    "block_encode": [
        _POINTER, _SIZE, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _SIZE,
    ],
    "block_decode": [
        _POINTER, _SIZE, _SIZE, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _SIZE,
    ],
    "threshold_count": [_POINTER, _INT, _SIZE, _FLOAT, _POINTER, _SIZE, _POINTER],
    "threshold_select": [_POINTER, _INT, _SIZE, _FLOAT, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE],
    "threshold_accumulate": [
        _POINTER, _INT, _POINTER, _FLOAT, _POINTER, _POINTER, _POINTER, _SIZE, _FLOAT, _POINTER, _SIZE, _POINTER,
    ],
    "threshold_take": [_POINTER, _POINTER, _SIZE, _FLOAT, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE],
    "mstopk": [_POINTER, _INT, _SIZE, _SIZE, _INT, _POINTER, _POINTER, _POINTER, _SIZE],
    "mstopk_accumulate": [
        _POINTER, _INT, _POINTER, _POINTER, _INT, _SIZE, _SIZE, _INT, _POINTER, _POINTER, _POINTER, _SIZE,
    ],
    "magnitude_curve": [_POINTER, _INT, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE],
    "gather": [_POINTER, _INT, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER, _INT],
    "take": [_POINTER, _INT, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER, _INT],
    "scatter_add": [_POINTER, _POINTER, _INT, _SIZE, _POINTER, _INT, _SIZE, _FLOAT, _POINTER, _INT],
    "scatter_set": [_POINTER, _POINTER, _INT, _SIZE, _POINTER, _INT, _SIZE, _FLOAT, _POINTER, _INT],
    "scatter_lists": [_POINTER, _SIZE, _INT, _POINTER, _INT, _SIZE, _FLOAT, _INT, _POINTER, _INT],
    "elias_fano_encode": [_POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _INT],
    "elias_fano_decode": [_POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _INT],
}  # fmt: skip
_WORKSPACES: dict[str, list[type]] = {
    "topk_workspace_bytes": [_SIZE, _SIZE],
    "sign_workspace_bytes": [_SIZE],
    "threshold_workspace_bytes": [_SIZE],
    "quantize_workspace_bytes": [_SIZE],
    "curve_workspace_bytes": [_SIZE],
    "mstopk_workspace_bytes": [_SIZE, _SIZE],
    "elias_fano_workspace_bytes": [_SIZE, _SIZE],
    "coded_workspace_bytes": [_SIZE, _INT],
}


class _SparseList(ctypes.Structure):
    """SparseList of csrc/include/hvd_compress/scatter.hpp."""

    _fields_ = (("indices", _POINTER), ("values", _POINTER), ("count", _SIZE))


class _BlockCodes(ctypes.Structure):
    """BlockCodes of csrc/include/hvd_compress/blocks.hpp."""

    _fields_ = (("codes", _POINTER), ("units", _POINTER))


class Kernels:
    """Of hvd_compress._native the functions that the library has, with the same parameters.

    Args:
        library: with the C interface of csrc/cuda/interface.cu.
        device: where tensors lie.
        stream: returns the address of the stream that kernels run on.
    """

    def __init__(self, library: ctypes.CDLL, device: torch.device, stream: Callable[[], int]) -> None:
        self._library, self._device, self._stream = library, device, stream
        self._index = device.index if device.type == "cuda" else None  # a guard takes a number in a fifth of the time
        self._faults = Faults(device)
        self._coder: dict[int, list[torch.Tensor]] = {}  # by `most`, its tables on the device
        for name, parameters in _PARAMETERS.items():
            getattr(library, f"hvd_compress_{name}").argtypes = [*parameters, _POINTER]
        for name, parameters in _WORKSPACES.items():
            function = getattr(library, f"hvd_compress_{name}")
            function.argtypes, function.restype = parameters, ctypes.c_size_t
        library.hvd_compress_launch_error.restype = ctypes.c_char_p

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name in _WORKSPACES:
            return getattr(self._library, f"hvd_compress_{name}")  # type: ignore[no-any-return]
        if name in _PARAMETERS:
            return functools.partial(self._call, name)
        raise UnsupportedError(f"{name} has no CUDA kernel in this version; move the tensors to the CPU")

    def force_topk(self, way: str) -> None:
        """Choose how every later top-k is done, where it can be so; for tests and measurements."""
        self._library.hvd_compress_topk_force(TOPK_WAYS.index(way))

    def accumulate(self, *arguments: int) -> torch.Tensor:
        finite = self._result(torch.int32)
        self._call("accumulate", *arguments, finite.data_ptr())
        return finite

    def scale(self, *arguments: float) -> torch.Tensor:
        finite = self._result(torch.int32)
        self._call("scale", *arguments, finite.data_ptr())
        return finite

    def threshold_count(self, *arguments: float) -> torch.Tensor:
        return self._counted("threshold_count", *arguments)

    def threshold_accumulate(self, *arguments: float) -> torch.Tensor:
        return self._counted("threshold_accumulate", *arguments)

    def block_sum(self, sources: Sequence[tuple[int, int]], *arguments: float) -> torch.Tensor:
        finite = self._result(torch.int32)
        array = _block_codes(sources)
        self._call("block_sum", ctypes.addressof(array), len(sources), *arguments, finite.data_ptr())
        return finite

    def block_sum_quantize(self, own: int, own_dtype: int, others: Sequence[tuple[int, int]], *arguments: int) -> None:
        array = _block_codes(others)
        self._call("block_sum_quantize", own, own_dtype, ctypes.addressof(array), len(others), *arguments)

    def block_encode(self, codes: int, numel: int, most: int, coded: int) -> int:
        """Return how many bytes were written, for which the host waits."""
        count, workspace = self._result(torch.int64), self._coder_workspace(numel, most)
        memory = workspace.data_ptr(), workspace.numel()
        self._call("block_encode", codes, numel, most, *self._tables(most), coded, count.data_ptr(), *memory)
        return int(count)

    def block_decode(self, coded: int, count: int, numel: int, most: int, codes: int) -> bool:
        """Return whether these are codes of `numel` elements, for which the host waits."""
        bad, workspace = self._empty(2, torch.int32), self._coder_workspace(numel, most)
        memory = workspace.data_ptr(), workspace.numel()
        self._call("block_decode", coded, count, numel, most, *self._tables(most), codes, bad.data_ptr(), *memory)
        return not bad.any()

    def _coder_workspace(self, numel: int, most: int) -> torch.Tensor:
        return self._empty(self.coded_workspace_bytes(numel, most), torch.uint8)  # type: ignore[arg-type]

    def _tables(self, most: int) -> list[int]:
        """Return where words, lengths and numbers of the coder lie, which are copied to the device once."""
        tables = self._coder.get(most)
        if tables is None:
            held = map(bytearray, importlib.import_module("hvd_compress.native.module").compiled.coded_tables(most))
            made = [torch.frombuffer(each, dtype=torch.uint8).to(self._device) for each in held]
            tables = self._coder.setdefault(most, made)  # those of another thread stay, which may be in use
        return [each.data_ptr() for each in tables]

    def gather(self, *arguments: int) -> int:
        return self._with_indices("gather", arguments[2], *arguments)

    def take(self, *arguments: int) -> int:
        return self._with_indices("take", arguments[2], *arguments)

    def scatter_add(self, *arguments: float) -> int:
        return self._with_indices("scatter_add", int(arguments[6]), *arguments)

    def scatter_set(self, *arguments: float) -> int:
        return self._with_indices("scatter_set", int(arguments[6]), *arguments)

    def elias_fano_encode(self, *arguments: int) -> int:
        return self._with_indices("elias_fano_encode", arguments[2], *arguments)

    def elias_fano_decode(self, *arguments: int) -> int:
        return self._with_indices("elias_fano_decode", arguments[2], *arguments)

    def scatter_lists(
        self,
        lists: Sequence[tuple[int, int, int]],
        dtype: int,
        out: int,
        out_dtype: int,
        n: int,
        scale: float,
        clear: bool,
    ) -> tuple[int, int]:
        array = (_SparseList * len(lists))(*(_SparseList(*one) for one in lists))
        address = ctypes.addressof(array)
        bad = self._with_indices("scatter_lists", n, address, len(lists), dtype, out, out_dtype, n, scale, clear)
        return bad, bad

    def _with_indices(self, name: str, numel: int, *arguments: float) -> int:
        """Return that no index is bad: whether one is, check_pending() will tell."""
        self._call(name, *arguments, *self._faults.place(name, numel))
        return -1

    def _counted(self, name: str, *arguments: float) -> torch.Tensor:
        count = self._result(torch.int64)
        self._call(name, *arguments, count.data_ptr())
        return count

    def _result(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((), dtype=dtype, device=self._device)

    def _empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device=self._device)

    def _call(self, name: str, *arguments: float) -> None:
        function = getattr(self._library, f"hvd_compress_{name}")
        # The library has a CUDA runtime of its own, which takes the context that torch's has made the thread's current.
        with nullcontext() if self._index is None else torch.cuda.device(self._index):
            status = function(*arguments, self._stream())
        if status == _LAUNCH_FAILED:
            error = self._library.hvd_compress_launch_error().decode()
            raise RuntimeError(f"{name} on {self._device}: CUDA refused to run a kernel: {error}")
        if status != _OK:
            raise RuntimeError(f"{name} on {self._device} refused its arguments: {_STATUS.get(status, status)}")


def _block_codes(sources: Sequence[tuple[int, int]]) -> ctypes.Array[_BlockCodes]:
    return (_BlockCodes * len(sources))(*(_BlockCodes(*one) for one in sources))


def kernels(device: torch.device) -> Kernels:
    """Return the kernels for a CUDA device. Raises UnsupportedError where they cannot be had."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return _kernels(index)


@functools.cache
def _kernels(index: int) -> Kernels:
    device = torch.device("cuda", index)

    library = load()
    count = int(library.hvd_compress_device_count())
    if count <= index:
        found = f"CUDA error {-count}" if count < 0 else f"{count} GPUs"
        raise UnsupportedError(
            f"{device} cannot be used: the CUDA runtime reports {found}; install NVIDIA's driver, or keep gradients on "
            "the CPU"
        )

    def stream() -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    return Kernels(library, device, stream)


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library. Raises UnsupportedError where it was not built."""
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        build = (
            "they are built with hvd_compress where nvcc is found: install the CUDA toolkit, run `pip install .` in "
            "the checkout again, or keep gradients on the CPU"
        )
        raise UnsupportedError(
            f"the CUDA kernels cannot be loaded ({error}); {shadow.remedy((LIBRARY.name,), build)}"
        ) from error
