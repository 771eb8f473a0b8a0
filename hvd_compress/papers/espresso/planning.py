"""A plan from the three profiles: which tensors travel together, and the option of each bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hvd_compress.papers.espresso.baselines import POLICIES, Policy
from hvd_compress.papers.espresso.espresso import Chosen, near_optimal
from hvd_compress.papers.espresso.fusion import Fused, cut, fuse, merges
from hvd_compress.papers.espresso.options import Constraints, Option
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.profiler.profiles import CompressorProfile, ModelProfile, SystemProfile

BUCKET_BYTES = (0, *(1 << exponent for exponent in range(16, 28, 2)))
"""Sizes of buckets to begin with: each tensor by itself, and 64 KiB to 64 MiB."""


@dataclass(frozen=True)
class Planned:
    """What was planned.

    Attributes:
        fused: the buckets.
        problem: of which the strategy is one.
        chosen: the strategy.
        complete: whether the search of all buckets and strategies came to its own end: the same inputs then give the
            same plan. Otherwise its budget ended it.
    """

    fused: Fused
    problem: Problem
    chosen: Chosen
    complete: bool = False

    @property
    def options(self) -> tuple[Option, ...]:
        """Of each bucket."""
        return tuple(self.problem.options[number] for number in self.chosen.strategy)

    @property
    def end_ns(self) -> int:
        """F: the nanoseconds of the backward pass with all synchronisation."""
        return self.chosen.end_ns


STARTS: tuple[Policy, ...] = tuple(POLICIES.values())


def plan(
    model: ModelProfile,
    system: SystemProfile,
    compressor: CompressorProfile,
    constraints: Constraints | None = None,
    *,
    fusion: bool = True,
    policies: Sequence[Policy] = STARTS,
    budget_s: float = 10.0,
    in_flight: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Planned:
    """Return the best plan that is found within a budget of time, never slower than any of `policies` without fusion.

    Args:
        fusion: whether tensors may be joined to buckets.
        policies: where the local search begins.
        budget_s: seconds of the search, for one core.
        in_flight: as in Problem.

    Raises:
        PlanError: constraints leave no option.
    """
    end = clock() + budget_s
    ladder = sorted({cut(model, size) for size in (BUCKET_BYTES if fusion else (0,))}, key=len, reverse=True)
    best: Planned | None = None
    complete = True
    for number, cuts in enumerate(ladder):
        shares = len(ladder) - number + int(fusion)  # one is left for merges
        share_s = max(0.0, end - clock()) / shares
        fused = fuse(model, cuts)
        problem = Problem(fused.model, system, compressor, constraints, in_flight=in_flight)
        starts = [policy(problem) for policy in policies]
        found = Planned(fused, problem, near_optimal(problem, starts, share_s, clock))
        complete = complete and found.chosen.complete
        best = found if best is None or found.end_ns < best.end_ns else best
    assert best is not None
    while fusion and clock() < end and (better := _merged(model, best, end, clock)):
        best = better
    return replace(best, complete=complete and (not fusion or clock() < end))


def _merged(
    model: ModelProfile,
    best: Planned,
    end: float,
    clock: Callable[[], float],
) -> Planned | None:
    """Return a better plan with two neighbours joined, each bucket with the option that it has now or Algorithm 1's."""
    of = best.problem
    for at, cuts in merges(best.fused):
        if clock() >= end:
            return None
        fused = fuse(model, cuts)
        problem = Problem(fused.model, of.system, of.compressor, of.constraints, in_flight=of.in_flight)
        kept = best.chosen.strategy
        joined = [(*kept[:at], kept[which], *kept[at + 2 :]) for which in (at, at + 1)]
        ends = problem.native.ends(joined)
        chosen = [Chosen(strategy, f, best.chosen.by) for strategy, f in zip(joined, ends, strict=True)]
        found = near_optimal(problem, chosen, budget_s=0.0, clock=clock)
        if found.end_ns < best.end_ns:
            return Planned(fused, problem, Chosen(found.strategy, found.end_ns, best.chosen.by))
    return None
