"""Espresso's selection (section 4.4), and a local search that begins with the choices of several policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hvd_compress.papers.espresso.options import Constraints
from hvd_compress.papers.espresso.problem import Problem

OFFLOADINGS = 1500
"""Timelines that Algorithm 2 may look at; beyond, it goes through one group after the other."""
LOOKS = 20_000
"""Strategies that one turn of the local search looks at."""

UNCOMPRESSING = Constraints(most_compressions=0)
ON_TRAINING_DEVICE = Constraints(devices=("training",))


@dataclass(frozen=True)
class Chosen:
    """A strategy and who found it.

    Attributes:
        strategy: the number of an option for each tensor.
        end_ns: its F.
        complete: whether nothing cut the search short: Algorithm 2 a number of timelines, a local search its time.
        simulations: timelines that a search took.
    """

    strategy: tuple[int, ...]
    end_ns: int
    by: str
    complete: bool = True
    simulations: int = 0


def start(problem: Problem) -> Chosen:
    """Return the best of the strategies that give all tensors one uncompressed option."""
    return best_uniform(problem, [*problem.where(UNCOMPRESSING), problem.uncompressed], "FP32")


def best_uniform(problem: Problem, among: Sequence[int], by: str) -> Chosen:
    """Return the best of the strategies that give all tensors one of these options."""
    strategies = [(option,) * len(problem.sizes) for option in among]
    ends = problem.native.ends(strategies)
    end = min(ends)
    return Chosen(strategies[ends.index(end)], end, by)


def algorithm1(problem: Problem, constraints: Constraints = ON_TRAINING_DEVICE) -> Chosen:
    """Return what Algorithm 1 selects with the options that constraints allow: C_gpu, if nothing else is said."""
    found = problem.native.select(problem.numel, problem.where(constraints), start(problem).strategy[0])
    return Chosen(found.strategy, found.end_ns, "Algorithm 1", found.complete, found.simulations)


def algorithm2(problem: Problem, chosen: Chosen) -> Chosen:
    """Return what Algorithm 2 makes of a strategy: compression offloaded to the CPU of the host."""
    found = problem.native.offload(chosen.strategy, problem.twins, OFFLOADINGS)
    return Chosen(found.strategy, found.end_ns, f"{chosen.by} and 2", found.complete, found.simulations)


def espresso(problem: Problem) -> Chosen:
    """Return the paper's choice: Algorithm 1, then 2."""
    return algorithm2(problem, algorithm1(problem))


def near_optimal(
    problem: Problem,
    starts: Sequence[Chosen],
    budget_s: float = 2.0,
    clock: Callable[[], float] = time.monotonic,
) -> Chosen:
    """Return the best strategy that a local search finds, from one start after the other, the best one first.

    It is never worse than any of `starts`. What it finds depends on the budget only where that ends it: `complete` says
    whether it did not.

    Args:
        budget_s: seconds, after which no start is begun any more, nor another turn of one.
    """
    among = list(range(len(problem.options)))
    end, best, complete = clock() + budget_s, min(starts, key=lambda chosen: chosen.end_ns), True
    for begin in sorted(starts, key=lambda chosen: chosen.end_ns):
        found, ended = begin, False
        while not ended and clock() < end:
            better = problem.native.improve(found.strategy, among, LOOKS)
            ended = better.complete or better.end_ns >= found.end_ns
            found = Chosen(better.strategy, better.end_ns, f"local search from {begin.by}")
        complete = complete and ended
        best = min(best, found, key=lambda chosen: chosen.end_ns)
    return replace(best, complete=complete)
