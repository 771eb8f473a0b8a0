"""A lane: the way of one bucket between the training, the compression and the engine, and who waits for whom on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

import torch


class Lane(ABC):
    """What pipeline and collectives call instead of asking where a bucket lies. One lane a bucket; it outlives steps.

    A step goes: mark_ready() and record_input() in the training thread; encoding() in the kernels thread;
    communicating(), and within it perhaps between_collectives(), in the collectives thread; decoding() in the kernels
    thread; wait_output() in the training thread. What is light is encoded and decoded in the collectives thread, too;
    what sends nothing does not communicate, and may, being light, be encoded and decoded in the training thread.
    Three kinds of memory: where gradients lie, where compression runs (`device`), and what the engine takes.

    Attributes:
        device: where compression runs, and residuals live.
        in_place: whether the engine takes the memory in which compression runs.
    """

    device: torch.device
    in_place = True

    @abstractmethod
    def workspace(self, flat: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        """Say which memory this lane works on from the next step on; called before the first one, and between two of
        them where the bucket lies in other memory, as it does for a program that keeps gradients.

        Args:
            flat: the bucket, where gradients lie.
            kept: residuals, where compression runs.

        Returns:
            What compression reads gradients from and writes results to: `flat` itself if it lies there.
        """

    @abstractmethod
    def mark_ready(self) -> None:
        """A gradient has been put into the bucket by the calling thread."""

    def gather(self) -> None:  # noqa: B027 (where there are no streams, nothing is to be done)
        """What the calling thread does to the bucket from now on comes after all that has been put into it."""

    @abstractmethod
    def record_input(self) -> None:
        """The bucket is full: what the training has been told to write to it until now belongs to it."""

    @abstractmethod
    def encoding(self) -> AbstractContextManager[None]:
        """Within it, what kernels read of the workspace is what it held at record_input()."""

    @abstractmethod
    def communicating(self) -> AbstractContextManager[None]:
        """Within it, what post() and buffers were given while encoding is there for the engine to read."""

    @abstractmethod
    def between_collectives(self) -> AbstractContextManager[None]:
        """Within it, kernels may run between two collectives; when it ends, what post() was given is there."""

    @abstractmethod
    def decoding(self) -> AbstractContextManager[None]:
        """Within it, kernels see what encoding and between_collectives() left, and may write the result."""

    @abstractmethod
    def wait_output(self, *results: torch.Tensor) -> None:
        """What the training does from now on sees the result in the bucket, and `results`, made while decoding."""

    @abstractmethod
    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory that the engine takes, (numel,). The same name gives the same memory in the next step."""

    # The rest is for an engine that takes the memory in which compression runs.

    def inbox(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return memory for what the engine receives, as buffer(); None where any memory will do."""
        return None

    def post(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to bring `tensor` from where compression runs to where the engine takes it; return it there.

        Call it within encoding() or between_collectives(). The result may be `tensor` itself.
        """
        return tensor

    def place(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin to copy `source`, where compression runs, into `target`, a part of a buffer; called as post()."""
        target.copy_(source)

    def fetch(self, tensor: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
        """Begin to bring what an engine left in `tensor` to where compression runs (to `into`); return it there.

        Call it within decoding() or between_collectives(). The result may be `tensor` itself.
        """
        return tensor if into is None or into is tensor else into.copy_(tensor)

    def take_bus_bytes(self) -> int:
        """Return how many bytes have crossed between a device and the host since the last call."""
        return 0


class HostLane(Lane):
    """Gradients, compression and engine share the host's memory, and what is called has happened when it returns."""

    device = torch.device("cpu")

    def workspace(self, flat: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        return flat

    def mark_ready(self) -> None: ...

    def record_input(self) -> None: ...

    def encoding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def communicating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def between_collectives(self) -> AbstractContextManager[None]:
        return nullcontext()

    def decoding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_output(self, *results: torch.Tensor) -> None: ...

    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device="cpu")


HOST = HostLane()
"""It holds nothing, so one serves all buckets."""
