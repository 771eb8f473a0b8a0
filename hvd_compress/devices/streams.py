"""What lanes ask of a device with streams: a few verbs, in the words of CUDA, so that tests can play them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import torch

Stream = Any
Moment = Any
"""A point in the order of a stream: everything that it was given before."""


class Streams(ABC):
    """The two streams of a device on which gradients are compressed and decompressed, and the moments between.

    Two, since the host runs ahead of the device: `outbound` is soon full of compressions that wait for gradients which
    the backward pass will compute much later, and what has arrived must not queue behind them. Work reaches `inbound`
    only when its data have come, so nothing in it waits long. Threads may share a Streams.

    Attributes:
        device: which one.
    """

    device: torch.device
    outbound: Stream
    inbound: Stream

    @abstractmethod
    def current(self) -> Stream:
        """Return the stream that the calling thread gives its work to."""

    @abstractmethod
    def use(self, stream: Stream) -> AbstractContextManager[None]:
        """Let the calling thread give its work to `stream`."""

    @abstractmethod
    def mark(self, stream: Stream, *written: torch.Tensor) -> Moment:
        """Return the present moment of `stream`: whoever waits for it sees what the stream did to `written`."""

    @abstractmethod
    def after(self, stream: Stream, moment: Moment) -> None:
        """Let what `stream` is given from now on begin after `moment`. The host does not wait."""

    @abstractmethod
    def wait(self, moment: Moment) -> None:
        """Let the calling thread sleep until `moment` has passed."""

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy in the order of the current stream, without waiting; one of the two is of this device, or both are."""

    @abstractmethod
    def pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeros in memory of the host that the device reads and writes by itself."""

    @abstractmethod
    def zeros(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeros in memory of the device, in the order of the current stream."""

    @abstractmethod
    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Let the memory of `tensor`, once freed, not be used again before `stream` has done what it has by then."""
