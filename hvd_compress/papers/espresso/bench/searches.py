"""What planning takes: set-up, Espresso's two algorithms, a timeline; beside the paper's Tables 5 and 6."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvd_compress.papers.espresso.baselines import POLICIES
from hvd_compress.papers.espresso.espresso import ON_TRAINING_DEVICE, algorithm1, algorithm2
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.profiler.profiles import CompressorProfile, ModelProfile, SystemProfile

Clock = Callable[[], float]
STRATEGIES = 100
"""Timelines of one strategy that are timed together."""
TIMELINE_BOUND_S = 20e-6
"""Of a timeline of 314 tensors."""


@dataclass(frozen=True)
class Paper:
    """Seconds that the paper took, with Python on another machine, and what we allow ourselves."""

    selection_s: float
    offloading_s: float
    selection_bound_s: float


PAPER: Mapping[str, Paper] = {
    "VGG16": Paper(0.017, 0.001, 0.0034),
    "ResNet101": Paper(0.179, 0.030, 0.0358),
    "UGATIT": Paper(0.084, 0.012, 0.0168),
    "BERT-base": Paper(0.125, 0.044, 0.025),
    "GPT2": Paper(0.099, 0.018, 0.0198),
    "LSTM": Paper(0.001, 0.001, 0.0005),
}
"""Tables 5 and 6. Bounds are a fifth of Table 5, of LSTM half, and Table 6."""


@dataclass(frozen=True)
class Figure:
    """Medians in seconds.

    Attributes:
        setup_s: prices of all options, for a system whose options are known.
        selection_s, selection_quartiles_s: Algorithm 1.
        offloading_s, offloading_quartiles_s: Algorithm 2.
        simulations: timelines of either.
        offloads_all: whether Algorithm 2 looked at all that Lemma 1 leaves.
        timeline_s: one F, of Espresso's choice.
        longest_timeline_s: one F, of the policy with the longest.
    """

    model: str
    tensors: int
    setup_s: float
    selection_s: float
    selection_quartiles_s: tuple[float, float]
    offloading_s: float
    offloading_quartiles_s: tuple[float, float]
    simulations: tuple[int, int]
    offloads_all: bool
    timeline_s: float
    longest_timeline_s: float

    @property
    def paper(self) -> Paper | None:
        return PAPER.get(self.model)


def measure(
    model: ModelProfile,
    system: SystemProfile,
    compressor: CompressorProfile,
    rounds: int,
    clock: Clock = time.perf_counter,
) -> Figure:
    """Time planning of a model, each part `rounds` times in turns."""
    problem = Problem(model, system, compressor)
    chosen = algorithm1(problem)  # which also looks up the options of the GPU, once a system
    offloaded = algorithm2(problem, chosen)
    strategies = [policy(problem).strategy for policy in POLICIES.values()]
    setup, selection, offloading, timeline = [], [], [], []
    longest: list[list[float]] = [[] for _ in strategies]
    for _ in range(rounds):
        setup.append(_timed(lambda: Problem(model, system, compressor), clock))
        selection.append(_timed(lambda: algorithm1(problem), clock))
        offloading.append(_timed(lambda: algorithm2(problem, chosen), clock))
        timeline.append(_timeline_s(problem, offloaded.strategy, clock))
        for times, strategy in zip(longest, strategies, strict=True):
            times.append(_timeline_s(problem, strategy, clock))
    return Figure(
        model=model.model,
        tensors=len(model.tensors),
        setup_s=statistics.median(setup),
        selection_s=statistics.median(selection),
        selection_quartiles_s=_quartiles(selection),
        offloading_s=statistics.median(offloading),
        offloading_quartiles_s=_quartiles(offloading),
        simulations=(chosen.simulations, offloaded.simulations),
        offloads_all=offloaded.complete,
        timeline_s=statistics.median(timeline),
        longest_timeline_s=max(map(statistics.median, longest)),
    )


def setup_s(
    model: ModelProfile, system: SystemProfile, compressor: CompressorProfile, clock: Clock = time.perf_counter
) -> float:
    """Time the set-up of a problem with Espresso's two sets of options: the first one of a process grows the tree."""

    def make() -> None:
        problem = Problem(model, system, compressor)
        problem.where(ON_TRAINING_DEVICE)
        assert problem.twins

    return _timed(make, clock)


def _timeline_s(problem: Problem, strategy: Sequence[int], clock: Clock) -> float:
    strategies = [strategy] * STRATEGIES
    return _timed(lambda: problem.native.ends(strategies), clock) / STRATEGIES


def _timed(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start


def _quartiles(times: Sequence[float]) -> tuple[float, float]:
    first, _, last = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else (*times,) * 3
    return first, last
