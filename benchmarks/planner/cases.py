"""The paper's evaluation (section 5.2.4): models, compressors, testbeds and numbers of GPUs, and F of every policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_compress.papers.espresso.baselines import POLICIES, upper_bound
from hvd_compress.papers.espresso.bench.testbeds import TESTBEDS, WORK, compressor, system
from hvd_compress.papers.espresso.espresso import near_optimal
from hvd_compress.papers.espresso.planning import plan
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.profiler.profiles import ModelProfile, read

GPUS = (64, 8)
FORWARD = 0.5
"""Forward pass over backward pass, which traces alone have: the usual one to two."""


@dataclass(frozen=True)
class Case:
    """What was found, F in nanoseconds.

    Attributes:
        ends: by policy.
        ours: local search from all policies, no tensors joined.
        upper: Upper Bound of that.
        fused, buckets: ours with fusion.
        fused_upper: Upper Bound with the buckets of `fused`, or without fusion if that is less.
    """

    model: str
    compressor: str
    testbed: str
    gpus: int
    tensors: int
    backward: int
    ends: dict[str, int]
    ours: int
    upper: int
    fused: int
    buckets: int
    fused_upper: int

    def gap(self, end: int, upper: int | None = None, forward: float = FORWARD) -> float:
        """Return by how much throughput stays below Upper Bound's, as a share of it."""
        before = forward * self.backward
        return 1 - (before + (self.upper if upper is None else upper)) / (before + end)

    def scaling(self, end: int) -> float:
        """Return the scaling factor: throughput of a GPU over that of one GPU alone."""
        return (1 + FORWARD) * self.backward / (FORWARD * self.backward + end)


def models(folder: Path, names: Sequence[str] = ()) -> list[ModelProfile]:
    """Return the traces of a folder, or those of these models."""
    found = [read(path, ModelProfile) for path in sorted(folder.glob("*.json"))]
    return [model for model in found if not names or model.model in names]


def cases(
    traces: Sequence[ModelProfile],
    gpus: Sequence[int] = GPUS,
    *,
    budget_s: float,
    measured: bool = False,
    compressors: Sequence[str] = tuple(WORK),
) -> Iterator[Case]:
    """Plan all combinations. `budget_s`: of ours, and of Upper Bound; fusion has three times as much."""
    for count, testbed, name, model in itertools.product(gpus, TESTBEDS, compressors, traces):
        yield _case(model, name, testbed, count, budget_s, measured)


def _case(model: ModelProfile, name: str, testbed: str, gpus: int, budget_s: float, measured: bool) -> Case:
    bed, compression = system(testbed, gpus), compressor(name, measured)
    problem = Problem(model, bed, compression)
    found = {policy: choose(problem) for policy, choose in POLICIES.items()}
    ours = near_optimal(problem, list(found.values()), budget_s)
    upper = upper_bound(problem, [*found.values(), ours], budget_s)
    fused = plan(model, bed, compression, budget_s=3 * budget_s)
    fused_upper = upper_bound(fused.problem, [fused.chosen], budget_s)
    return Case(
        model=model.model,
        compressor=name,
        testbed=testbed,
        gpus=gpus,
        tensors=len(model.tensors),
        backward=round(sum(tensor.backward_us for tensor in model.tensors) * 1e3),
        ends={policy: chosen.end_ns for policy, chosen in found.items()},
        ours=ours.end_ns,
        upper=upper.end_ns,
        fused=fused.end_ns,
        buckets=len(fused.fused.cuts),
        fused_upper=min(upper.end_ns, fused_upper.end_ns),
    )
