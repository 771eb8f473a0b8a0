"""Moments of a training, by the clock of the device that trains. No method but `settle` makes the host wait."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, Protocol

import torch

from hvd_compress.errors import UnsupportedError

Moment = Any
"""Opaque: what a clock's `now` returned."""


class Clock(Protocol):
    """Gives moments, and the seconds between two of them."""

    def now(self) -> Moment:
        """Return the moment at which what the calling thread has launched so far is done."""

    def settle(self) -> None:
        """Wait until all moments so far have come."""

    def seconds(self, begin: Moment, end: Moment) -> float:
        """Return the seconds from one moment to another. Both have come."""


class HostClock:
    """Of a CPU, where what was called has happened."""

    def now(self) -> float:
        return perf_counter()

    def settle(self) -> None: ...

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class CudaClock:
    """Of a GPU: events in the current stream, which the host does not wait for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return 1e-3 * float(begin.elapsed_time(end))


def device_of(parameters: Iterable[torch.Tensor]) -> torch.device:
    """Return where parameters lie; a CPU where there are none.

    Raises UnsupportedError where they lie on several devices, or on one that has no clock here.
    """
    devices = sorted({parameter.device for parameter in parameters}, key=str) or [torch.device("cpu")]
    if len(devices) > 1 or devices[0].type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"a profile is of a model on one device, the CPU or a GPU, and this one's parameters lie on "
            f"{', '.join(map(str, devices))}"
        )
    return devices[0]


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return HostClock() if device.type == "cpu" else CudaClock(device)
