"""Compression on the device, for engines that take the host's memory: payloads cross the bus through pinned buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hvd_compress.devices.device import DeviceLane
from hvd_compress.devices.streams import Streams


class StagedLane(DeviceLane):
    """As DeviceLane; and what the engine takes and gives is copied between the device and pinned memory of the host.

        outbound:     encode, copy to host --.
        collectives:                          '-> wait, engine --.
        inbound:                                                  '-> copy to device, decode

    Copies run in the order of the streams; the only thread that waits for one is that of the collectives. Pinned memory
    is kept from step to step: it is written again no sooner than the training has seen the result of the step before.
    """

    in_place = False

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._buffers: dict[str, torch.Tensor] = {}
        self._bus_bytes = 0

    @contextmanager
    def communicating(self) -> Iterator[None]:
        self._streams.wait(self._encoded)
        yield

    @contextmanager
    def between_collectives(self) -> Iterator[None]:
        with self._inbound():
            yield
        self._streams.wait(self._streams.mark(self._streams.inbound, *self._owned))

    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < numel or kept.dtype != dtype:
            kept = self._buffers[name] = self._streams.pinned(numel, dtype)
        return kept[:numel]

    def inbox(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor | None:
        return self.buffer(name, numel, dtype)

    def post(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        staged = self.buffer(name, tensor.numel(), tensor.dtype)
        self.place(staged, tensor)
        return staged

    def place(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._streams.copy(target, source)
        self._bus_bytes += source.nbytes

    def fetch(self, tensor: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
        target = torch.empty_like(tensor, device=self.device) if into is None else into
        self.place(target, tensor)
        return target

    def take_bus_bytes(self) -> int:
        taken, self._bus_bytes = self._bus_bytes, 0
        return taken
