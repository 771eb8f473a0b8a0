"""Streams of an NVIDIA GPU, by torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hvd_compress.devices.streams import Streams
from hvd_compress.errors import UnsupportedError

_HIGH = -1
"""Above the 0 of all other streams."""


class CudaStreams(Streams):
    """Two streams of high priority, so that a kernel of ours need not queue behind the many of a backward pass.

    The current device of the calling thread, the user's perhaps, may be another one. torch records events, waits in
    streams and copies under the device of the stream or tensor; what it leaves to the current device is guarded here.
    """

    def __init__(self, device: torch.device) -> None:
        """Raises UnsupportedError where torch sees no such GPU."""
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
            raise UnsupportedError(f"{device} cannot be used: torch {torch.__version__} sees {seen} GPUs here")
        self.device = device
        self._index = device.index or 0
        self.outbound = torch.cuda.Stream(device, priority=_HIGH)  # type: ignore[no-untyped-call]
        self.inbound = torch.cuda.Stream(device, priority=_HIGH)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._index)

    @contextmanager
    def use(self, stream: torch.cuda.Stream) -> Iterator[None]:
        # By itself torch.cuda.stream() returns to the device of before by a call that makes a context there.
        with torch.cuda.device(self._index), torch.cuda.stream(stream):
            yield

    def mark(self, stream: torch.cuda.Stream, *written: torch.Tensor) -> torch.cuda.Event:
        # Blocking: a thread that waits must not take a core from the training.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def after(self, stream: torch.cuda.Stream, moment: torch.cuda.Event) -> None:
        stream.wait_event(moment)

    def wait(self, moment: torch.cuda.Event) -> None:
        with torch.cuda.device(self._index):
            moment.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        with torch.cuda.device(self._index):
            return torch.zeros(numel, dtype=dtype, device="cpu", pin_memory=True)

    def zeros(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(numel, dtype=dtype, device=self.device)

    def keep(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        tensor.record_stream(stream)


@functools.cache
def cuda_streams(index: int) -> CudaStreams:
    """Return the streams of a GPU: the same for all optimizers of a process."""
    return CudaStreams(torch.device("cuda", index))
