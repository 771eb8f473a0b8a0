"""What every scheme promises, and the bucket that it works on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from hvd_compress.devices.lane import HOST, Lane
from hvd_compress.engines.base import Engine


@dataclass(frozen=True)
class Work:
    """One bucket in one step.

    Attributes:
        gradient: (numel,) in the bucket's dtype. Holds this rank's gradient, and the result at the end.
        residual: (numel,) fp32, what earlier steps did not send; never written. None where nothing is remembered.
        pending: (numel,) fp32, receives what this step does not send; becomes the residual if the step succeeds.
        segments: numel of each parameter.
        scale: what the sum over ranks is multiplied by: 1 / world_size for an average.
        lane: what leads to the engine and back; engines take no tensor that did not come from it.
        watched: whether the controller wants to know whose indices were used, and what was sent (Exchange.picked).
        note: what this rank has to say to the others, in the header of its payload, if it sends one.
    """

    gradient: torch.Tensor
    residual: torch.Tensor | None
    pending: torch.Tensor | None
    segments: tuple[int, ...]
    step: int
    bucket: int
    scale: float
    lane: Lane = HOST
    watched: bool = False
    note: int = 0


@dataclass(frozen=True)
class Picked:
    """The rank whose indices were used, the same on all ranks, and the squared norm of what this rank sent.

    `sent` is a tensor () of float64, where compression runs.
    """

    root: int
    sent: torch.Tensor


class Exchange(ABC):
    """The three phases of one bucket's way through a scheme, called once each, in this order.

    Where the work is watched, `picked` is set after communicate() by schemes in which one rank's indices count. `heard`
    is after decode() what ranks had to say, or-ed bit by bit: those whose payload all ranks received, so it is the same
    on every rank; 0 where no payload has a header. `leads` is False on a rank whose encoding nobody waits for, as that
    of another one takes longer by nature.
    """

    picked: Picked | None = None
    heard: int = 0
    leads: bool = True

    @abstractmethod
    def encode(self) -> None:
        """Compress what this rank has. Runs within lane.encoding(), while other buckets communicate."""

    @abstractmethod
    def communicate(self, engine: Engine) -> None:
        """Launch the collectives, the same on every rank. Runs within lane.communicating(), in the thread for it."""

    @abstractmethod
    def decode(self) -> torch.Tensor:
        """Write scale * sum over ranks to work.gradient; return whether all of it is finite, as a tensor () of bool.

        Runs within lane.decoding(). The answer is the same on every rank: it depends on what all ranks received alone.
        Nobody looks into it before all buckets are there. After this work.pending holds corrected - transmitted.
        """


class Scheme(ABC):
    """Answers: who sends what, in which rounds?"""

    @abstractmethod
    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        """Return the exchange of one bucket in one step."""


def all_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Whether no element is NaN or infinite, in one pass, as a tensor () of bool."""
    if tensor.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    low, high = torch.aminmax(tensor)  # both are NaN as soon as one element is
    return torch.isfinite(low) & torch.isfinite(high)
