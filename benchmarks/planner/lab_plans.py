"""The plans that are measured beside ours: one option for all buckets, or what a policy chooses without fusion."""

from __future__ import annotations

from hvd_compress.planner.baselines import myopic
from hvd_compress.planner.espresso import Chosen
from hvd_compress.planner.fusion import cut, fuse
from hvd_compress.planner.making import Inputs, Made, make
from hvd_compress.planner.options import Constraints, by_name
from hvd_compress.planner.planning import Planned
from hvd_compress.planner.problem import Problem
from hvd_compress.planner.writing import to_plan
from hvd_compress.policies.plan_schema import Plan

OURS = "ours"
BUCKET_BYTES = 4 << 20
UNIFORM = {
    "dense, a bucket a tensor": (0, "allreduce@all"),
    "dense, reduce and broadcast": (BUCKET_BYTES, "reduce@all broadcast@all"),
    "all-gather": (BUCKET_BYTES, "comp@training allgather*@all decomp@training"),
    "all-to-all, all-gather": (
        BUCKET_BYTES,
        "comp@training alltoall*@all decomp@training comp@training allgather*@all decomp@training",
    ),
    "all-to-all, dense all-gather": (BUCKET_BYTES, "comp@training alltoall*@all decomp@training allgather@all"),
}
"""Bytes of a bucket, and the option that all have. ResNet-50 has one of 8 MB, the example one of 4.5 MB."""


def plans_of(inputs: Inputs) -> dict[str, tuple[Plan, float]]:
    """Return plans by name, ours first, each with the microseconds that a step is predicted to take."""
    made = make(inputs, budget_s=10.0)
    found = {OURS: made, "dense, the best": Made(made.dense, made.dense, made.runs, made.model)}
    for name, (size, option) in UNIFORM.items():
        found[name] = _uniform(inputs, made, size, option)
    found["myopic, a bucket a tensor"] = _myopic(inputs, made)
    return {name: (to_plan(each, inputs), each.step_us) for name, each in found.items()}


def _problem(inputs: Inputs, made: Made, size: int) -> tuple[Planned, Problem]:
    fused = fuse(inputs.model, cut(inputs.model, size))
    allowed = Constraints(only=tuple(str(option) for option in made.runs))
    problem = Problem(fused.model, inputs.system, inputs.profile, allowed, in_flight=inputs.in_flight(made.engine))
    plain = problem.uniform(problem.options[problem.uncompressed])
    return Planned(fused, problem, Chosen(plain, problem.end_ns(plain), "FP32")), problem


def _uniform(inputs: Inputs, made: Made, size: int, option: str) -> Made:
    planned, problem = _problem(inputs, made, size)
    strategy = problem.uniform(by_name(option))
    chosen = Chosen(strategy, problem.end_ns(strategy), option)
    return Made(Planned(planned.fused, problem, chosen), made.dense, made.runs, made.model)


def _myopic(inputs: Inputs, made: Made) -> Made:
    planned, problem = _problem(inputs, made, 0)
    return Made(Planned(planned.fused, problem, myopic(problem)), made.dense, made.runs, made.model)
