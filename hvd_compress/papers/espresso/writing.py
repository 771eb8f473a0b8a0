"""What was planned as the file that Compression.plan() reads, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.fusion import fuse
from hvd_compress.papers.espresso.making import Inputs, Made
from hvd_compress.papers.espresso.options import Constraints, by_name
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.policies.plan_schema import BucketEntry, Parameter, Plan, Prediction, Treatment
from hvd_compress.policies.plan_settings import settings_of
from hvd_compress.profiler.profiles import Tensor


def to_plan(made: Made, inputs: Inputs) -> Plan:
    """Return the plan: an entry for each bucket, in backward order; with shapes where the profile has all of them."""
    system, tensors = inputs.system, inputs.model.tensors
    return Plan(
        version=1,
        world_size=system.hosts * system.ranks_per_host,
        model=_parameters(tensors),
        engine=made.engine,
        default=Treatment(),  # of what has no elements, or rows
        buckets=tuple(_entry(made, bucket) for bucket in range(len(made.planned.fused.cuts))),
        prediction=Prediction(
            step_us=made.step_us,
            dense_us=made.dense_us,
            **{name: str(Path(file).resolve()) for name, file in inputs.files.items()},
        ),
    )


def reason(made: Made, bucket: int) -> str:
    """Say why a bucket travels as it does."""
    if made.planned.options[bucket] == made.plain:
        return "no other option would shorten the step"
    plain_ms, planned_ms = (ns / 1e6 for ns in made.busy_ns[bucket])
    saved_ms = made.saved_ns[bucket] / 1e6
    step = f"alone shortens the step by {saved_ms:.3f} ms" if saved_ms else "other buckets hide the difference"
    return f"its tasks take {planned_ms:.3f} ms, {plain_ms:.3f} ms by {made.plain}; {step}"


def _entry(made: Made, bucket: int) -> BucketEntry:
    option = made.planned.options[bucket]
    run = made.runs[option]
    return BucketEntry(
        parameters=tuple(made.model.tensors[number].name for number in made.planned.fused.cuts[bucket]),
        compressor=settings_of(run.compressor),
        collective=run.path.collective,
        algorithm=run.path.algorithm,
        device=run.device,
        option=str(option),
        reason=reason(made, bucket),
    )


def _parameters(tensors: Sequence[Tensor]) -> dict[str, Parameter] | None:
    """Return what the model must be like; None where shapes are not known, so that names alone are checked."""
    found = {
        tensor.name: Parameter(shape=tensor.shape, dtype=tensor.dtype) for tensor in tensors if tensor.shape is not None
    }
    return found if len(found) == len(tensors) else None


def strategy_of(plan: Plan, inputs: Inputs) -> tuple[Problem, tuple[int, ...]]:
    """Return the problem whose tensors are a plan's buckets, and the plan as a strategy of it.

    Raises:
        PlanError: the plan has no options, or its parameters, ranks or compressor are not those of the profile.
    """
    _check_profile(plan, inputs)
    numbers = {tensor.name: number for number, tensor in enumerate(inputs.model.tensors)}
    named = [name for entry in plan.buckets for name in entry.parameters]
    if set(named) != set(numbers):
        odd = sorted(set(named) ^ set(numbers))
        raise PlanError(
            f"plan and profile have different parameters: {odd[0]!r}"
            + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
            + f" in one of them alone; the profile is {inputs.files['model']}"
        )
    cuts = tuple(tuple(numbers[name] for name in entry.parameters) for entry in plan.buckets)
    names = [_option(at, entry) for at, entry in enumerate(plan.buckets)]
    allowed = Constraints(only=tuple(sorted(set(names))))
    fused = fuse(inputs.model, cuts)
    problem = Problem(fused.model, inputs.system, inputs.profile, allowed, in_flight=inputs.in_flight(plan.engine))
    return problem, tuple(problem.number(by_name(name)) for name in names)


def _check_profile(plan: Plan, inputs: Inputs) -> None:
    ranks = inputs.system.hosts * inputs.system.ranks_per_host
    if plan.world_size not in (None, ranks):
        raise PlanError(f"the plan is for {plan.world_size} ranks, and {inputs.files['system']} is of {ranks}")
    for at, entry in enumerate(plan.buckets):
        used = entry.built()
        if used.compresses and used != inputs.compressor:
            raise PlanError(
                f"buckets.{at}.compressor is {used}, and {inputs.files['compressor']} is of {inputs.compressor}: pass "
                "the profile that the plan was made from as --profile"
            )


def _option(at: int, entry: BucketEntry) -> str:
    if entry.option is None:
        raise PlanError(
            f"buckets.{at}.option is missing: `hvd-compress plan make` writes it, and nothing is predicted without"
        )
    try:
        return str(by_name(entry.option))
    except PlanError as error:
        raise PlanError(f"buckets.{at}.option: {error}") from None
