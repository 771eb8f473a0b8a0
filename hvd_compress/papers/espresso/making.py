"""A plan that a job can run, from the files of a profile; beside it the best one without compression."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Compressor
from hvd_compress.engines.names import EngineName
from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.espresso import start
from hvd_compress.papers.espresso.options import Constraints, Option
from hvd_compress.papers.espresso.planning import Planned, plan
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.papers.espresso.running import Run, runnable
from hvd_compress.policies.plan_settings import compressor_of
from hvd_compress.profiler.profiles import NAMES as NAMES
from hvd_compress.profiler.profiles import (
    CompressorProfile,
    ModelProfile,
    SystemProfile,
    read,
    require_one_run,
)

DEFAULT_ENGINE: EngineName = "mpi"
"""Of a profile that a person wrote."""
TOLERANCE, HEADER_BYTES = 1.2, 256
"""By how much a profile's payloads may differ from what the compressor says that it sends."""


@dataclass(frozen=True)
class Inputs:
    """The planner's three inputs, and the files that they come from."""

    files: Mapping[str, Path]
    model: ModelProfile
    system: SystemProfile
    profile: CompressorProfile
    compressor: Compressor

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> Inputs:
        """Read the files of NAMES. Raises PlanError that names the file, the path in it, and what was expected."""
        for name, file in files.items():
            if not os.path.exists(file):  # False also for a name that is too long
                alone = "; a job of one rank has no network: docs/profile.md shows one written by hand"
                raise PlanError(
                    f"there is no {file}: `hvd-compress profile` writes it, or pass another file as --{name}"
                    + (alone if name == "system" else "")
                )
        model, system = read(files["model"], ModelProfile), read(files["system"], SystemProfile)
        profile = read(files["compressor"], CompressorProfile)
        require_one_run({files["model"]: model, files["system"]: system, files["compressor"]: profile})
        _check_names(files["model"], model)
        compressor = _compressor(files["compressor"], profile)
        _check_payload(files["compressor"], profile, compressor, max(tensor.numel for tensor in model.tensors))
        return cls(files, model, system, profile, compressor)

    def in_flight(self, engine: EngineName | None) -> int:
        """Return how many buckets a job exchanges at a time: as the profile says, of its own engine; else one."""
        return self.system.in_flight if engine in (None, self.system.engine) or self.system.engine is None else 1

    def runs(self, engine: EngineName) -> dict[Option, Run]:
        """Return what a job can run. Raises PlanError where that is nothing but what is not compressed."""
        found = runnable(self.compressor, self.system, engine, self.profile.devices)
        if not any(option.compressions for option in found):
            raise PlanError(
                f"{self.files['compressor']}: compressor: no collective carries out an option of the tree with "
                f"{self.compressor} over engine {engine!r}: it takes payloads that can be gathered in one round and "
                "decompressed, such as those of topk"
            )
        return found


@dataclass(frozen=True)
class Made:
    """A plan for a job.

    Attributes:
        planned: the strategy.
        dense: the best that is found without compression, in a quarter of the budget.
        runs: how each option is run.
        model: without fusion.
        engine: that it was made for; None where neither the profile nor who asked has named one.
    """

    planned: Planned
    dense: Planned
    runs: Mapping[Option, Run]
    model: ModelProfile
    engine: EngineName | None = None

    @property
    def step_us(self) -> float:
        """Predicted time of a step: forward pass, with the optimizer's update, backward pass and synchronisation."""
        return self.model.forward_us + self.planned.end_ns / 1e3

    @property
    def dense_us(self) -> float:
        return self.model.forward_us + self.dense.end_ns / 1e3

    @cached_property
    def plain(self) -> Option:
        """The uncompressed option that is best for these buckets, where all take the same."""
        problem = self.planned.problem
        return problem.options[start(problem).strategy[0]]

    @cached_property
    def saved_ns(self) -> list[int]:
        """By bucket, how much longer the step would take if it alone travelled by `plain`."""
        problem, strategy = self.planned.problem, self.planned.chosen.strategy
        number = problem.number(self.plain)
        others = [(*strategy[:at], number, *strategy[at + 1 :]) for at in range(len(strategy))]
        return [end - self.planned.end_ns for end in problem.native.ends(others)]

    @cached_property
    def busy_ns(self) -> list[tuple[int, int]]:
        """By bucket, how long all its tasks take by themselves: by `plain`, and as planned."""
        problem = self.planned.problem
        plain, planned = (_busy_ns(problem, s) for s in (problem.uniform(self.plain), self.planned.chosen.strategy))
        return list(zip(plain, planned, strict=True))


def make(
    inputs: Inputs,
    constraints: Constraints | None = None,
    *,
    engine: EngineName | None = None,
    fusion: bool = True,
    budget_s: float = 10.0,
) -> Made:
    """Return the best plan that is found among what can be run, by prediction never slower than without compression.

    Args:
        constraints: what the user allows of it.
        engine: a name of `running.ENGINES`; by default that of the profile, and "mpi" where it says none.
        fusion: whether tensors may share buckets.
        budget_s: seconds of the search. Where it is complete before, the same inputs give the same plan.

    Raises:
        PlanError: constraints name an option that cannot be run, or leave none, or no device with a profile.
    """
    engine = engine or inputs.system.engine
    over = engine or DEFAULT_ENGINE
    runs, asked = inputs.runs(over), constraints or Constraints()
    if not set(asked.devices) & set(inputs.profile.devices):
        raise PlanError(
            f"{inputs.files['compressor']}: devices: no times of {' or '.join(asked.devices)}, which alone may "
            f"compress; it has {', '.join(inputs.profile.devices)}"
        )
    names = {str(option) for option in runs if asked.allow(option)}
    for name in asked.only:
        if name not in {str(option) for option in runs}:
            raise PlanError(
                f"option {name!r} cannot be run with {inputs.compressor} over engine {over!r}, or compresses on two "
                f"devices or on one without times; {len(runs)} options can, such as {str(next(iter(runs)))!r}"
            )
    if not names:
        raise PlanError(f"no option that can be run is left: {asked}")
    allowed = replace(asked, only=tuple(sorted(names)))
    arguments, in_flight = (inputs.model, inputs.system, inputs.profile), inputs.in_flight(engine)
    plain = replace(allowed, most_compressions=0, least_compressions=0)
    dense = plan(*arguments, plain, fusion=fusion, policies=(start,), budget_s=budget_s / 4, in_flight=in_flight)
    found = plan(*arguments, allowed, fusion=fusion, budget_s=3 * budget_s / 4, in_flight=in_flight)
    best = dense if dense.end_ns < found.end_ns else found
    complete = dense.complete and found.complete
    return _settled(Made(replace(best, complete=complete), dense, runs, inputs.model, engine))


def _settled(made: Made) -> Made:
    """Let buckets travel by `plain` as long as one of them alone shortens the step so: a budget may have been short."""
    while min(made.saved_ns) < 0:
        at = made.saved_ns.index(min(made.saved_ns))
        planned, number = made.planned, made.planned.problem.number(made.plain)
        strategy = (*planned.chosen.strategy[:at], number, *planned.chosen.strategy[at + 1 :])
        chosen = replace(planned.chosen, strategy=strategy, end_ns=planned.end_ns + made.saved_ns[at])
        made = replace(made, planned=replace(planned, chosen=chosen))
    return made


def _busy_ns(problem: Problem, strategy: Sequence[int]) -> list[int]:
    found = [0] * len(problem.model.tensors)
    for span in problem.native.spans(strategy):
        if span.task >= 0:
            found[span.tensor] += span.end_ns - span.start_ns
    return found


def _check_names(file: Path, model: ModelProfile) -> None:
    counts = Counter(tensor.name for tensor in model.tensors)
    for number, tensor in enumerate(model.tensors):
        if counts[tensor.name] > 1:
            raise PlanError(
                f"{file}: tensors.{number}.name: {tensor.name!r} stands {counts[tensor.name]} times: names of "
                "parameters, each once"
            )


def _compressor(file: Path, profile: CompressorProfile) -> Compressor:
    try:
        compressor = compressor_of(profile.compressor)
    except ValueError as error:
        raise PlanError(f"{file}: compressor: {error}") from None
    if not compressor.compresses:
        raise PlanError(f"{file}: compressor: {compressor} loses nothing: name one that compresses, such as topk")
    return compressor


def _check_payload(file: Path, profile: CompressorProfile, compressor: Compressor, numel: int) -> None:
    """Raise PlanError where the payloads of a profile are not those of its compressor."""
    said = profile.payload.nbytes(numel)
    layout = Layout.of(numel)
    true = sum(round_.nbytes for round_ in compressor.wire(layout))
    least = true / TOLERANCE - HEADER_BYTES if compressor.is_fixed(layout) else 0.0
    if not least <= said <= true * TOLERANCE + HEADER_BYTES:
        raise PlanError(
            f"{file}: payload: {said:,.0f} bytes for {numel:,} elements, where {compressor} sends {true:,}: measure "
            "them again with the settings of `compressor`"
        )
