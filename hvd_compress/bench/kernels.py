"""How long each native kernel takes, beside its floor and beside what torch takes for the same."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from hvd_compress.bench.cases import bind, cases
from hvd_compress.measuring import fixed_threads, timed

REFERENCE_NUMEL = 25_557_032  # of ResNet-50: for it, and whoever types 25.6M, we promise ourselves the bounds below
_CALL_S, _PEER_S = 5e-8, 3.4e-7
"""What all kernels with their floors, and all peers, take for an element: measured once, on one machine."""
_BOUNDS: dict[tuple[str, float | None], float] = {
    ("topk_accumulate", 0.001): 1.8,
    ("topk_accumulate", 0.01): 1.8,
    ("topk_accumulate", 0.1): 2.5,
    ("sign_accumulate", None): 1.8,
    ("threshold_select", 0.01): 1.0,
    ("threshold_accumulate", 0.01): 1.8,
    ("threshold_accumulate/momentum", 0.01): 2.3,
    ("mstopk_accumulate", 0.01): 2.3,
    ("scatter_lists", 0.01): 1.5,
    ("gain_curve", None): 1.5,
    ("quantize_accumulate/8", None): 2.5,
    **{(f"block_quantize/{form}", None): 1.8 for form in ("8", "4", "3", "2.5", "2", "4-random")},
    **{(f"block_sum/{form}", None): 1.3 for form in ("8", "4", "3", "2.5", "2")},
    **{(f"block_sum_quantize/{form}", None): 2.0 for form in ("8", "4", "3", "2.5", "2", "4-random")},
}


@dataclass(frozen=True)
class Figure:
    """One measurement: medians in seconds.

    Attributes:
        kernel, ratio, numel, threads, data: what was measured.
        seconds: our kernel.
        floor_s: torch.add(residual, grad, out=residual) on the same buffers and threads, in turns with our kernel; of
            block_sum_quantize on the part that a rank owns, and scaled from 12 bytes an element to its own.
        peer_s: torch's own operations for the same selection or rounding; it does not pack bits. Fewer repetitions.
        bound: the multiple of the floor that it may take, where one is stated.
        quartiles: of our time over the floor's, turn by turn.
    """

    kernel: str
    ratio: float | None
    numel: int
    threads: int
    data: str
    seconds: float
    floor_s: float
    peer_s: float
    bound: float | None
    quartiles: tuple[float, float]

    @property
    def times_floor(self) -> float:
        return self.seconds / self.floor_s

    @property
    def times_faster(self) -> float:
        return self.peer_s / self.seconds


def gradients(kind: str, numel: int) -> torch.Tensor:
    """Return a gradient (numel,) of the named distribution: "normal" or "laplace"."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(numel, generator=generator)
    if kind == "laplace":
        x = x.sign() * torch.rand(numel, generator=generator).clamp(min=2.0**-24).log()
    return x


def peer_repetitions(numel: int) -> int:
    """Return how often the peers run, which take so long that one must do where there are many elements."""
    return 3 if numel < 10**7 else 1


def estimated_s(numel: int, repetitions: int, share: float = 1.0) -> float:
    """Return about how long measure() takes, for a share of the kernels."""
    calls, peer_calls = repetitions + 2, 2 * peer_repetitions(numel)
    return share * (1.0 + numel * (_CALL_S * calls + _PEER_S * peer_calls))


def measure(
    grad: torch.Tensor, data: str, threads: int, repetitions: int, kernels: Collection[str] | None = None
) -> Iterator[Figure]:
    """Yield the figures of the kernels with these names, or of all, on one gradient."""
    with fixed_threads(threads):
        residual, start = torch.empty_like(grad), 0.5 * grad.roll(1)
        restore = _restore(residual, start)
        floor = bind(torch.add, residual, grad, out=residual)
        for case in cases(grad, residual, restore):
            if kernels is not None and case.name not in kernels:
                continue
            call, scale = case.floor or (floor, 1.0)
            ours, floors = times([(case.run, case.prepare), (call, restore)], repetitions)
            (peers,) = times([(case.peer, case.prepare)], peer_repetitions(grad.numel()))
            seconds, floor_s, peer_s = (statistics.median(taken) for taken in (ours, floors, peers))
            quartiles = _quartiles([own / (scale * least) for own, least in zip(ours, floors, strict=True)])
            promised = math.isclose(grad.numel(), REFERENCE_NUMEL, rel_tol=0.01)
            bound = _BOUNDS.get((case.name, case.ratio)) if promised else None
            yield Figure(
                case.name, case.ratio, grad.numel(), threads, data, seconds, scale * floor_s, peer_s, bound, quartiles
            )


def _restore(tensor: torch.Tensor, value: torch.Tensor) -> Callable[[], object]:
    return lambda: tensor.copy_(value)


def _quartiles(values: list[float]) -> tuple[float, float]:
    first, _, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return first, third


def times(
    calls: Sequence[tuple[Callable[[], object], Callable[[], object]]],
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Time (call, what prepares it) in turns, so that a machine that becomes slower does so for all of them.

    Returns the seconds of each repetition, by the clock, for each call.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    warm_up = min(2, repetitions)  # the first ones find cold caches and memory that is not mapped yet
    for repetition in range(warm_up + repetitions):
        for (call, prepare), own in zip(calls, seconds, strict=True):
            prepare()
            taken = timed(call, clock)
            if repetition >= warm_up:
                own.append(taken)
    return seconds
