"""Compression on the device where gradients lie: who waits for whom; and lanes for engines that take its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hvd_compress.devices.lane import Lane
from hvd_compress.devices.streams import Moment, Stream, Streams


class DeviceLane(Lane):
    """Kernels on the compression streams of the gradients' device. The engine takes memory of the device, too.

        training:  gradients ... record_input() --.                          .--> wait_output() ... optimizer
        outbound:                            '-> encode --.           /
        inbound:                                           '-> decode

    No method here makes the host wait. Horovod's engine waits for the stream in which it is called, and returns when
    the result is there; collectives then wait for the few bytes that the host must know: a payload's header, variances.
    """

    def __init__(self, streams: Streams) -> None:
        self.device = streams.device
        self._streams = streams
        self._owned: tuple[torch.Tensor, ...] = ()
        self._sources: list[Stream] = []
        self._departed: list[Moment] = []
        self._encoded: Moment = None
        self._decoded: Moment = None

    def workspace(self, flat: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        self._owned = (flat, *kept)
        for tensor in self._owned:
            self._streams.keep(tensor, self._streams.outbound)
            self._streams.keep(tensor, self._streams.inbound)
        return flat

    def mark_ready(self) -> None:
        current = self._streams.current()
        if current not in self._sources:  # nearly always there is one
            self._sources.append(current)

    def gather(self) -> None:
        current = self._streams.current()
        for stream in self._sources:
            if stream != current:
                self._streams.after(current, self._streams.mark(stream, *self._owned))
        self._sources = [current]

    def record_input(self) -> None:
        self.mark_ready()
        self._departed = [self._streams.mark(stream, *self._owned) for stream in self._sources]
        self._sources = []

    @contextmanager
    def encoding(self) -> Iterator[None]:
        streams = self._streams
        for moment in self._departed:
            streams.after(streams.outbound, moment)
        with streams.use(streams.outbound):
            yield
        self._encoded = streams.mark(streams.outbound, *self._owned)

    @contextmanager
    def communicating(self) -> Iterator[None]:
        with self._inbound():
            yield

    @contextmanager
    def between_collectives(self) -> Iterator[None]:
        with self._inbound():
            yield

    @contextmanager
    def decoding(self) -> Iterator[None]:
        with self._inbound():
            yield
        self._decoded = self._streams.mark(self._streams.inbound, *self._owned)

    def wait_output(self, *results: torch.Tensor) -> None:
        current = self._streams.current()
        self._streams.after(current, self._decoded)
        for result in results:
            self._streams.keep(result, current)

    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return self._streams.zeros(numel, dtype)

    @contextmanager
    def _inbound(self) -> Iterator[None]:
        streams = self._streams
        streams.after(streams.inbound, self._encoded)
        with streams.use(streams.inbound):
            yield
