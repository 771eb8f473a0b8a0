"""Compression on the CPU of gradients that lie on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hvd_compress.devices.lane import HostLane
from hvd_compress.devices.staged import StagedLane
from hvd_compress.devices.streams import Streams


class OffloadLane(HostLane):
    """The whole bucket is copied to pinned memory, compressed there by the CPU's kernels, and the result copied back.

    That is 2 * numel elements over the bus, and the kernels thread sleeps until the bucket is full and copied. It
    leaves the device's time and memory to the training: residuals live in the host's memory.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams, self._way = streams, StagedLane(streams)
        self._flat: torch.Tensor
        self._mirror: torch.Tensor

    def workspace(self, flat: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        self._flat = self._way.workspace(flat)
        if not hasattr(self, "_mirror"):  # a bucket keeps its length and dtype
            self._mirror = self._streams.pinned(flat.numel(), flat.dtype)
        return self._mirror

    def mark_ready(self) -> None:
        self._way.mark_ready()

    def gather(self) -> None:
        self._way.gather()

    def record_input(self) -> None:
        self._way.record_input()

    @contextmanager
    def encoding(self) -> Iterator[None]:
        with self._way.encoding():
            self._way.place(self._mirror, self._flat)
        with self._way.communicating():  # waits for the copy
            yield

    @contextmanager
    def decoding(self) -> Iterator[None]:
        yield
        with self._way.decoding():
            self._way.place(self._flat, self._mirror)

    def wait_output(self, *results: torch.Tensor) -> None:
        self._way.wait_output(*results)

    def take_bus_bytes(self) -> int:
        return self._way.take_bus_bytes()
