"""Bad indices that CUDA kernels met: noted on the device, and raised here when the caller asks, once a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hvd_compress.errors import MismatchError, UsageError

_NONE = -1  # kNoFault of csrc/include/hvd_compress/scatter.hpp
_MAX_TAG = 0xFFFF


class _Here(threading.local):
    where = ""


_here = _Here()
_all: list[Faults] = []


@contextmanager
def about(where: str) -> Iterator[None]:
    """Say what the lists of indices in this block are, for check_pending(): "payload from rank", for example.

    Not the step: each text is remembered for as long as the program runs.
    """
    before, _here.where = _here.where, where
    try:
        yield
    finally:
        _here.where = before


def check_pending() -> None:
    """Raise what was wrong with the lists of indices that CUDA kernels were given since the last call.

    Such a kernel leaves bad indices out and tells nobody, so that the host need not wait for it; call this once a step,
    before anything is done with the results. It waits for the work that the current streams hold so far, so they must
    have waited for the streams on which kernels ran, or graphs were replayed. Without a CUDA kernel it does nothing: on
    the CPU the same errors rise at once.

    Raises:
        MismatchError: names the kernel, what about() said, list and position of the first bad index on a device.
        UsageError: called while a CUDA graph is captured.
    """
    for faults in _all:
        faults.check()


def forget_pending() -> None:
    """Forget what check_pending() would raise, without waiting: the work it belongs to was given up."""
    for faults in _all:
        faults.forget()


def is_capturing(device: torch.device) -> bool:
    """Whether the calling thread captures a CUDA graph on this device. torch looks at its current device alone."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


class Faults:
    """The first bad index that kernels of one device were given since the last check.

    Args:
        device: where the 8 bytes lie in which kernels note it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: torch.Tensor | None = None
        self._tags: dict[tuple[str, str, int], int] = {}
        self._lock = threading.Lock()  # AR-Topk takes values in the thread of the collectives, others decompress
        _all.append(self)

    def place(self, kernel: str, numel: int) -> tuple[int, int]:
        """Return what a launcher is told: where to note a bad index, and the tag that stands for this kind of call."""
        what = (_here.where, kernel, numel)
        with self._lock:
            if self._first is None:
                self._refuse_capture(f"{kernel} is called for the first time on {self._device}")
                first = torch.full((), _NONE, dtype=torch.int64, device=self._device)
                if self._device.type == "cuda":
                    torch.cuda.current_stream(self._device).synchronize()  # once: other streams use it, too
                self._first = first
            return self._first.data_ptr(), self._tags.setdefault(what, min(len(self._tags), _MAX_TAG))

    def check(self) -> None:
        """Raise MismatchError for the first bad index, and forget it."""
        if self._first is None:
            return
        self._refuse_capture("check_pending() is called")
        first = int(self._first)
        if first == _NONE:
            return
        self._first.fill_(_NONE)
        tag, number, position = first >> 48 & _MAX_TAG, first >> 32 & 0xFFFF, first & 0xFFFFFFFF
        whats = [what for what, known in self._tags.items() if known == tag]
        # Calls beyond the last tag share it.
        where, kernel, numel = whats[0] if len(whats) == 1 else ("", "some kernel", None)
        listed = f"{where or 'list'} {number}: " if kernel == "scatter_lists" else f"{where}: " if where else ""
        last = "numel - 1" if numel is None else numel - 1
        raise MismatchError(
            f"{listed}the index at position {position} lies outside 0..{last}, or does not lie above the one before "
            f"({kernel} on {self._device})"
        )

    def forget(self) -> None:
        """Forget the first bad index, in the order of the current stream."""
        if self._first is not None:
            self._first.fill_(_NONE)

    def _refuse_capture(self, what: str) -> None:
        if is_capturing(self._device):
            raise UsageError(
                f"{what} while a CUDA graph is captured; run the work once before its capture, as torch.cuda.graph "
                "asks, and check after its replay"
            )
