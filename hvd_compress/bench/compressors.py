"""How long each compressor takes, how much it sends and how much of the gradient that is, beside the floor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress.bench.inputs import Gradients
from hvd_compress.bench.simulation import Energy, SimulatedRank, StepTiming, take_step
from hvd_compress.compressors.base import Compressor
from hvd_compress.measuring import timed

WARM_UP = 3
"""Steps that are not timed: memory is mapped, residuals have something in them, a warm start is warm."""


@dataclass(frozen=True)
class Figure:
    """What was measured of one compressor, or of a hook of torch.

    Attributes:
        name: as in `Compression`, or of the hook.
        kind: that of the compressor, or "torch hook".
        settings: the compressor's repr, or how the hook was called.
        ranks: whose payloads are decoded.
        numel: elements of the bucket.
        sent_bytes: what a rank sends in a step, headers aside: the mean over ranks and steps.
        encode_s, decode_s: seconds, medians over steps; None of a hook, which does both in one call.
        both_s: seconds of encoding and decoding, median over steps.
        floor_s: seconds of torch.add(residual, gradient, out=residual), in turns with the steps, median.
        gain: ||transmitted||^2 / ||corrected||^2 in the last step; a rounding that is only right on average has more.
        lost: ||corrected - transmitted||^2 / ||corrected||^2 in the last step.
        cosine: of the result with the mean gradient of all ranks, mean over steps.
        failure: why there are no figures; empty where there are.
    """

    name: str
    kind: str
    settings: str = ""
    ranks: int = 0
    numel: int = 0
    sent_bytes: float = 0.0
    encode_s: float | None = None
    decode_s: float | None = None
    both_s: float = 0.0
    floor_s: float = 0.0
    gain: float = 0.0
    lost: float = 0.0
    cosine: float = 0.0
    failure: str = ""

    @property
    def bits(self) -> float:
        """Sent for each element."""
        return 8 * self.sent_bytes / self.numel

    def times_floor(self, seconds: float | None) -> float | None:
        """Return a time as a multiple of the floor's."""
        return None if seconds is None else seconds / self.floor_s


class Floor:
    """torch.add(residual, gradient, out=residual), timed beside each step."""

    def __init__(self, numel: int) -> None:
        self._residual = torch.zeros(numel)
        self.seconds: list[float] = []

    def measure(self, gradient: torch.Tensor) -> None:
        """Time it on a gradient that was just written."""
        self._residual.zero_()
        self.seconds.append(timed(lambda: torch.add(self._residual, gradient, out=self._residual)))


def measure(name: str, compressor: Compressor, gradients: Gradients, ranks: int, rounds: int) -> Figure:
    """Return the figures of a compressor: WARM_UP steps, then `rounds` that count.

    An error becomes the figure's `failure`. So does a result that is not the same on all ranks.
    """
    empty = Figure(name, compressor.kind, repr(compressor), ranks, gradients.layout.numel)
    return guarded(empty, lambda: _measured(empty, compressor, gradients, ranks, rounds))


def guarded(empty: Figure, call: Callable[[], Figure]) -> Figure:
    """Return what a call returns, or the empty figure with its error: the others are to be measured nevertheless."""
    try:
        return call()
    except Exception as error:  # whatever it is, it is the row's
        return replace(empty, failure=f"{type(error).__name__}: {error}")


def _measured(empty: Figure, compressor: Compressor, gradients: Gradients, ranks: int, rounds: int) -> Figure:
    layout = gradients.layout
    members = [SimulatedRank(compressor, layout, rank, ranks) for rank in range(ranks)]
    floor, passed, cosines, energies = Floor(layout.numel), list[StepTiming](), list[float](), list[Energy]()
    for step in range(WARM_UP + rounds):
        for rank in reversed(range(ranks)):
            gradients.write(rank, step, ranks, members[rank].gradient)
        dense = sum_of(members)
        if step == WARM_UP + rounds - 1:
            energies = [member.alone(step) for member in members]
        floor.measure(members[0].gradient)
        passed.append(take_step(members, compressor, layout, step))
        cosines.append(cosine(members[0].gradient, dense))
        _check_same(members)
    return replace(
        empty,
        sent_bytes=statistics.mean(one.sent_bytes for one in passed[WARM_UP:]),
        encode_s=statistics.median(one.encode_s for one in passed[WARM_UP:]),
        decode_s=statistics.median(one.decode_s for one in passed[WARM_UP:]),
        both_s=statistics.median(one.encode_s + one.decode_s for one in passed[WARM_UP:]),
        floor_s=statistics.median(floor.seconds[WARM_UP:]),
        cosine=statistics.mean(cosines[WARM_UP:]),
        gain=share(sum(e.transmitted for e in energies), sum(e.corrected for e in energies)),
        lost=share(sum(e.lost for e in energies), sum(e.corrected for e in energies)),
    )


def sum_of(members: Sequence[SimulatedRank]) -> torch.Tensor:
    """Return the sum of the ranks' gradients."""
    total = members[0].gradient.clone()
    for member in members[1:]:
        total += member.gradient
    return total


def cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the cosine of two tensors (numel,), 0 where one of them is zero."""
    norms = float(torch.linalg.vector_norm(x)) * float(torch.linalg.vector_norm(y))
    return float(torch.dot(x, y)) / norms if norms else 0.0


def share(part: float, whole: float) -> float:
    """Return part / whole; 1 where all of it is zero, as everything of nothing is sent."""
    return part / whole if whole else 1.0


def _check_same(members: Sequence[SimulatedRank]) -> None:
    for rank, member in enumerate(members):
        if not torch.equal(member.gradient, members[0].gradient):
            raise AssertionError(f"the result of rank {rank} is not that of rank 0")
