"""The report of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.collectives.probe import ProbeReport


@dataclass(frozen=True)
class Outcome:
    """What an exchange has left, as `Exchange` says."""

    report: ProbeReport
    result: torch.Tensor | None


@dataclass(frozen=True)
class Exchanged:
    """What finish() returns: numbers of buckets that are not finite, seconds by phase, bytes sent and over the bus.

    `spans` and `outcomes` are in the order of bucket numbers; `given_up` says whether all ranks give the step up.
    """

    nonfinite: tuple[int, ...]
    seconds: dict[str, float]
    sent_bytes: int
    bus_bytes: int
    spans: tuple[PhaseSpans, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    given_up: bool = False

    @property
    def finite(self) -> bool:
        return not self.nonfinite


@dataclass(frozen=True)
class StepReport:
    """One step as this rank saw it. Times in seconds; phases of different buckets overlap, so they do not add up.

    Attributes:
        step: counted from 0.
        compress_s, communicate_s, decompress_s: time spent in each phase, all buckets together.
        wait_s: how long synchronize() blocked: what is left when the backward pass has hidden the rest.
        sent_bytes: mean over ranks of the bytes that a rank sent, by the collectives' textbook counts.
        dense_bytes: the same for a ring allreduce of the whole gradient, or a reduce-scatter where ranks own shards.
        finite: whether the result was finite; residuals change in no other step.
        bus_bytes: what this rank copied between GPUs and host.
        nonfinite_steps: how many steps so far, this one included, were not finite.
        parameter_bytes: what this rank sent to gather parameters since the last report, where compress() of FSDP2 was
            given parameters=; else 0.
        dense_parameter_bytes: the same without compression.

    On a GPU kernels are only launched by the host: compress_s and decompress_s are the time that takes, and
    communicate_s begins when the payload has been computed and copied.
    """

    step: int
    compress_s: float
    communicate_s: float
    decompress_s: float
    wait_s: float
    sent_bytes: int
    dense_bytes: int
    finite: bool
    bus_bytes: int = 0
    nonfinite_steps: int = 0
    parameter_bytes: int = 0
    dense_parameter_bytes: int = 0

    @property
    def share(self) -> float:
        """What was sent of what is compressed, over the same without compression.

        Of gradients; and of parameters, where compress() of FSDP2 was given parameters=, else not.
        """
        dense_bytes = self.dense_bytes + self.dense_parameter_bytes
        return (self.sent_bytes + self.parameter_bytes) / dense_bytes if dense_bytes else 1.0

    @classmethod
    def of(
        cls,
        exchanged: Exchanged,
        step: int,
        wait_s: float,
        dense_bytes: int,
        nonfinite_before: int,
        gathered: tuple[int, int] = (0, 0),
    ) -> StepReport:
        """Return the report of a step.

        Args:
            nonfinite_before: how many steps before it were not finite.
            gathered: bytes sent to gather parameters, and those without compression.
        """
        return cls(
            step=step,
            compress_s=exchanged.seconds["encode"],
            communicate_s=exchanged.seconds["communicate"],
            decompress_s=exchanged.seconds["decode"],
            wait_s=wait_s,
            sent_bytes=exchanged.sent_bytes,
            dense_bytes=dense_bytes,
            finite=exchanged.finite,
            bus_bytes=exchanged.bus_bytes,
            nonfinite_steps=nonfinite_before + (not exchanged.finite),
            parameter_bytes=gathered[0],
            dense_parameter_bytes=gathered[1],
        )
