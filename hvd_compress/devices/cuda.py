"""Streams of an NVIDIA GPU, by torch."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import torch

from hvd_compress.devices.streams import Streams
from hvd_compress.errors import UnsupportedError

_HIGH = -1
"""Above the 0 of all other streams."""


class CudaStreams(Streams):
    """Two streams of high priority, so that a kernel of ours need not queue behind the many of a backward pass."""

    def __init__(self, device: torch.device) -> None:
        """Raises UnsupportedError where torch sees no such GPU."""
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
            raise UnsupportedError(f"{device} cannot be used: torch {torch.__version__} sees {seen} GPUs here")
        self.device = device
        self.outbound = torch.cuda.Stream(device, priority=_HIGH)  # type: ignore[no-untyped-call]
        self.inbound = torch.cuda.Stream(device, priority=_HIGH)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        return torch.cuda.stream(stream)  # it sets the thread's device, too

    def mark(self, stream: torch.cuda.Stream, *written: torch.Tensor) -> torch.cuda.Event:
        # Blocking: a thread that waits must not take a core from the training.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def after(self, stream: torch.cuda.Stream, moment: torch.cuda.Event) -> None:
        stream.wait_event(moment)

    def wait(self, moment: torch.cuda.Event) -> None:
        moment.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(numel, dtype=dtype, device="cpu", pin_memory=True)

    def zeros(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(numel, dtype=dtype, device=self.device)

    def keep(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        tensor.record_stream(stream)


@functools.cache
def cuda_streams(index: int) -> CudaStreams:
    """Return the streams of a GPU: the same for all optimizers of a process."""
    return CudaStreams(torch.device("cuda", index))
