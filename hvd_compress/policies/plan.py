"""A plan: per bucket, or per pattern of parameter names, how its gradients travel; from a file, checked first."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, Literal

import torch
from pydantic import Field, field_validator, model_validator

from hvd_compress import schema, schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.compressors import COMPRESSORS, Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.decision import Decision, Request, compression_device
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, PlanError, UsageError
from hvd_compress.policies.base import DecisionPolicy, Launch
from hvd_compress.policies.fixed import decide

VERSION = 1
DTYPES = ("float32", "float16", "bfloat16")
_KINDS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}
"""By the annotation of a setting."""
log = logging.getLogger("hvd_compress")


class Treatment(schema.Strict):
    """How buckets travel.

    Attributes:
        compressor: its `name` in COMPRESSORS, and its settings.
        scheme, algorithm: as a path has them; "auto" is what the request of that compressor alone would take.
        broadcast: of AR-Topk's indices.
        device: what compresses: "auto", "cpu" or "cuda".
    """

    compressor: dict[str, Any] = Field(default_factory=lambda: {"name": "cast"})
    scheme: str = "auto"
    algorithm: str = "auto"
    broadcast: str = "auto"
    device: str = "auto"

    @field_validator("compressor")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        compressor_of(settings)
        return settings

    @model_validator(mode="after")
    def _go_together(self) -> Treatment:
        compressor = self.built()
        names = [name for name in schemes.names_for(compressor) if len(schemes.meanings(name)) == 1]
        if self.scheme not in ("auto", *names) and not schemes.ByOption.means(self.scheme):
            raise ValueError(f"scheme {self.scheme!r} cannot carry {compressor}; auto, {', '.join(names)} can")
        if self.scheme == "auto" and self.broadcast != "auto":
            raise ValueError(f"broadcast {self.broadcast!r} needs a scheme that broadcasts: name it")
        self.request()
        if self.scheme != "auto":
            schemes.build(compressor, self.path)
        return self

    @property
    def path(self) -> Path:
        """Its path; its scheme may be "auto"."""
        return Path(self.scheme, self.algorithm, self.broadcast)

    def built(self) -> Compressor:
        """Return the compressor."""
        return compressor_of(self.compressor)

    def request(self) -> Request:
        """Return what is asked for where the scheme is open."""
        algorithm = self.algorithm if self.scheme == "auto" else "auto"
        return Request(self.built(), algorithm=algorithm, device=self.device)

    def describe(self) -> str:
        """Return it in words."""
        return f"{self.built()} by {self.path}"


class BucketEntry(Treatment):
    """Parameters that are one bucket, in this order.

    Attributes:
        option: of the planner's tree, which `scheme` carries out; for `hvd-compress plan compare`.
        reason: of the choice, for people.
    """

    parameters: tuple[str, ...] = Field(min_length=1)
    option: str | None = None
    reason: str = ""


class PatternEntry(Treatment):
    """Parameters whose names match, as `*.weight` does; cut into buckets as usual, which they share with no others."""

    pattern: str


class Parameter(schema.Strict):
    """What a parameter must be like; of any dtype where none is said."""

    shape: tuple[int, ...]
    dtype: str | None = None


class Prediction(schema.Strict):
    """What `hvd-compress plan make` expects, in microseconds of a step, and the files that it read.

    Attributes:
        step_us: of this plan.
        dense_us: of the best plan without compression.
    """

    step_us: float = Field(ge=0)
    dense_us: float = Field(ge=0)
    model: str
    system: str
    compressor: str


class Plan(schema.Strict):
    """A whole plan.

    Attributes:
        version: of this schema.
        world_size: of the job that it is for; None for any.
        model: the parameters that it was made for, by name; None for any.
        buckets, patterns: each parameter is in one of them, at most.
        default: how all others travel; without it a parameter in no entry is an error.
        prediction: of the planner, where that made it; nothing is decided by it.
    """

    version: Literal[1]
    world_size: int | None = Field(default=None, ge=1)
    model: dict[str, Parameter] | None = None
    buckets: tuple[BucketEntry, ...] = ()
    patterns: tuple[PatternEntry, ...] = ()
    default: Treatment | None = None
    prediction: Prediction | None = None

    @model_validator(mode="after")
    def _once(self) -> Plan:
        seen: set[str] = set()
        for entry in self.buckets:
            for name in entry.parameters:
                if name in seen:
                    raise ValueError(f"parameter {name!r} is in two places of `buckets`")
                seen.add(name)
        for pattern, count in Counter(entry.pattern for entry in self.patterns).items():
            if count > 1:
                raise ValueError(f"pattern {pattern!r} comes twice")
        return self

    def differences(self, parameters: Sequence[Layout], world_size: int) -> Iterator[str]:
        """Yield in words what does not fit a model and a job.

        Args:
            parameters: the layout of each parameter by itself; sparse ones travel by their rows, whatever is said.
        """
        layouts = {layout.names[0]: layout for layout in parameters}
        if self.world_size is not None and self.world_size != world_size:
            yield f"it is for {self.world_size} ranks, and there are {world_size}"
        for name, wanted in (self.model or {}).items():
            layout = layouts.get(name)
            if layout is None:
                yield f"it knows a parameter {name!r}, which the model does not have"
            elif (layout.shapes[0], _word(layout.dtype)) != (wanted.shape, wanted.dtype or _word(layout.dtype)):
                yield (
                    f"{name!r} is {list(layout.shapes[0])} {_word(layout.dtype)}, and {list(wanted.shape)} "
                    f"{wanted.dtype or 'of any dtype'} in the plan"
                )
        yield from self._of_buckets(layouts)
        for entry in self.patterns:
            if not fnmatch.filter(layouts, entry.pattern):
                yield f"pattern {entry.pattern!r} matches no parameter"
        for name, layout in layouts.items():
            found = self._entries(name)
            if len(found) > 1:
                yield f"{name!r} is in several entries: {' and '.join(map(_called, found))}"
            if not found and self.default is None and not layout.sparse:
                yield f"{name!r} is in no entry, and there is no default"

    def _of_buckets(self, layouts: Mapping[str, Layout]) -> Iterator[str]:
        for entry in self.buckets:
            missing = [name for name in entry.parameters if name not in layouts]
            if missing and (self.model is None or missing[0] not in self.model):
                yield f"a bucket names a parameter {missing[0]!r}, which the model does not have"
            kinds = {(layouts[n].dtype, layouts[n].place) for n in entry.parameters if n in layouts}
            if len(kinds) > 1:
                yield f"{_called(entry)} has parameters of several dtypes or devices"

    def treatment(self, name: str) -> Treatment:
        """Return how a parameter travels; dense where nothing is said."""
        found = self._entries(name)
        return _only(found[0]) if found else self.default or Treatment()

    @cached_property
    def _bucket_of(self) -> dict[str, BucketEntry]:
        return {name: entry for entry in self.buckets for name in entry.parameters}

    def _entries(self, name: str) -> list[BucketEntry | PatternEntry]:
        found: list[BucketEntry | PatternEntry] = [self._bucket_of[name]] if name in self._bucket_of else []
        return found + [entry for entry in self.patterns if fnmatch.fnmatchcase(name, entry.pattern)]

    def write(self, path: FilePath) -> None:
        """Write the file. Raises PlanError where it cannot be written."""
        schema.write(path, self.model_dump(mode="json", exclude_defaults=True) | {"version": VERSION}, "plan")


def read(path: str | FilePath) -> Plan:
    """Read a plan. Raises PlanError that says where it is none."""
    return schema.read(path, Plan, "plan")


def plan_in_use(buckets: Mapping[tuple[str, ...], Decision], layouts: Sequence[Layout], world_size: int) -> Plan:
    """Return the plan that says what is in use.

    Args:
        buckets: the decision of each bucket, by the names of its parameters.
        layouts: of all buckets; those of sparse gradients are left out.

    Raises UsageError where a bucket is skipped, as a plan is the same in each step, or only tries how to travel.
    """
    dense = [layout for layout in layouts if not layout.sparse]
    for layout, decision in zip(dense, buckets.values(), strict=True):
        if not schemes.stages(decision.compressor, decision.path, layout, world_size):
            raise UsageError(
                f"the bucket of {layout.called} is skipped in the coming step, and a plan is the same in each: pass "
                "Compression.covap() itself"
            )
        if decision.is_trial:
            raise UsageError(
                f"the bucket of {layout.called} travels by {decision.path} for the time being ({decision.reason}): "
                "train more steps, then save"
            )
    entries = [
        BucketEntry(
            parameters=layout.names,
            compressor=settings_of(decision.compressor),
            scheme=decision.path.scheme,
            algorithm=decision.path.algorithm,
            broadcast=decision.path.broadcast,
            device=decision.device,
        )
        for layout, decision in zip(dense, buckets.values(), strict=True)
    ]
    model = {
        name: Parameter(shape=shape, dtype=_word(layout.dtype))
        for layout in dense
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    return Plan(version=1, world_size=world_size, model=model, buckets=tuple(entries))


@dataclasses.dataclass(frozen=True)
class PlanFile:
    """A plan that was read; ranks compare the digest of what it says."""

    digest: str
    plan: Plan = dataclasses.field(repr=False)

    @classmethod
    def read(cls, path: str | FilePath) -> PlanFile:
        """Read a file. Raises PlanError."""
        if not isinstance(path, (str, FilePath)):
            raise PlanError(f"a plan is the path of a file, not {path!r}")
        plan = read(path)
        said = json.dumps(plan.model_dump(mode="json"), sort_keys=True)
        return cls(hashlib.sha256(said.encode()).hexdigest()[:16], plan)

    def make(self, request: Request) -> PlannedPolicy:
        return PlannedPolicy(self.plan)


RECUT = 2
"""From this step on buckets stay as they are: DDP cuts them anew in step 1, in the order in which gradients came."""


class PlannedPolicy(DecisionPolicy):
    """Decides as a plan says. Where a front end cuts buckets itself, as DDP does, a bucket with several treatments is
    sent dense."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mixed: list[tuple[Layout, int]] = []  # buckets with so many treatments
        self._told = False

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        """Check that the plan fits. Raises PlanError with the differences, on every rank alike."""
        super().prepare(engine, parameters)
        found = list(self._plan.differences(parameters, engine.world_size))
        if not found:
            found = [words for layout in parameters if (words := self._obstacle(layout))]
        if found:
            raise PlanError(
                f"the plan does not fit: {schema.summary(found)}. Write one for this job with save_plan(), or change it"
            )

    def _obstacle(self, layout: Layout) -> str:
        """Return why a parameter cannot travel as the plan says, or nothing."""
        treatment = self._plan.treatment(layout.names[0])
        try:
            decision = self._decide(treatment, layout)
            if layout.sparse or schemes.runs(decision.compressor, decision.path, layout, self.capabilities):
                return ""
        except ConfigError as error:
            return f"{layout.called}: {error}"
        obstacle = schemes.obstacle(decision.scheme, self.capabilities)
        if obstacle:
            return f"{layout.called}: {decision.path} cannot be run: {obstacle}"
        names = ", ".join(map(str, schemes.runnable(decision.compressor, layout, self.capabilities)))
        return f"{layout.called}: {decision.path} cannot carry it over this engine, which offers {names}"

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        known = set(names)
        named = [tuple(name for name in entry.parameters if name in known) for entry in self._plan.buckets]
        whole = [Part(part, whole=True) for part in named if part]  # others travel by their rows
        matched = [tuple(fnmatch.filter(names, entry.pattern)) for entry in self._plan.patterns]
        return [*whole, *(Part(part) for part in matched if part)]

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._mixed = []
        return [self._decision(layout) for layout in buckets]

    def decide(self, step: int) -> Mapping[int, Decision]:
        """Change nothing; say once what travels dense, when buckets are as they stay."""
        if step >= RECUT and self._mixed and not self._told and self.rank == 0:
            self._told = True
            layout, treatments = self._mixed[0]
            log.warning(
                "hvd_compress: the plan treats parameters of %d of the buckets that DDP cuts in several ways; these "
                "travel dense, such as that of %s with %d treatments: treat all of them alike, or make buckets smaller "
                "(bucket_cap_mb); this is told once",
                len(self._mixed),
                layout.called,
                treatments,
            )
        return {}

    def _decision(self, layout: Layout) -> Decision:
        treatments: list[Treatment] = []
        for treatment in map(self._plan.treatment, layout.names):
            if treatment not in treatments:
                treatments.append(treatment)
        if len(treatments) == 1:
            return self._decide(treatments[0], layout)
        self._mixed.append((layout, len(treatments)))
        device = compression_device(Request(Cast()), layout.device_type)
        return Decision(Cast(), Path("dense"), device, "the plan treats its parameters in several ways")

    def _decide(self, treatment: Treatment, layout: Layout) -> Decision:
        request = treatment.request()
        lossy = treatment.built().compresses or schemes.ByOption.means(treatment.scheme)  # options sum in fp32
        kept = layout.dtype == torch.float64 and lossy  # it travels dense
        if treatment.scheme == "auto" or kept:
            decided = decide(request, layout, self.world_size, self.capabilities)
            return dataclasses.replace(decided, reason=f"planned: {decided.reason}")
        device = compression_device(request, layout.device_type)
        return Decision(treatment.built(), treatment.path, device, "planned")


def compressor_of(settings: Mapping[str, Any]) -> Compressor:
    """Return the compressor of a plan's settings. Raises ValueError that says what is wrong with them."""
    name = settings.get("name")
    if not isinstance(name, str) or name not in COMPRESSORS:
        raise ValueError(f"unknown compressor {name!r}; known are {', '.join(COMPRESSORS)}")
    known = {field.name: str(field.type) for field in dataclasses.fields(COMPRESSORS[name])}  # type: ignore[arg-type]
    given = {key: value for key, value in settings.items() if key != "name"}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{name} has no setting {key!r}; it has {', '.join(known) or 'none'}")
        if not _KINDS.get(known[key], _any)(value):
            raise ValueError(f"{key} of {name} is {value!r}, which is no {known[key]}")
        if isinstance(value, Mapping):  # a compressor within another
            given[key] = compressor_of(value)
    for field in dataclasses.fields(COMPRESSORS[name]):  # type: ignore[arg-type]
        if field.name not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} needs a setting {field.name}")
    if given.get("dtype") is not None:
        given["dtype"] = _dtype(given["dtype"])
    try:
        return COMPRESSORS[name](**given)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _any(_: Any) -> bool:
    return True


def _dtype(word: Any) -> torch.dtype:
    if word not in DTYPES:
        raise ValueError(f"unknown dtype {word!r}; known are {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, word)
    return dtype


def settings_of(compressor: Compressor) -> dict[str, Any]:
    """Return the settings that `compressor_of` reads."""
    name = next((name for name, kind in COMPRESSORS.items() if type(compressor) is kind), None)
    if name is None:
        raise UsageError(
            f"a plan cannot hold {compressor}: it names {', '.join(COMPRESSORS)}, and no compressor of your own"
        )
    values = {field.name: getattr(compressor, field.name) for field in dataclasses.fields(compressor)}  # type: ignore[arg-type]
    return {"name": name} | {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, Compressor):
        return settings_of(value)
    return _word(value) if isinstance(value, torch.dtype) else value


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _only(entry: Treatment) -> Treatment:
    """Return the treatment of an entry alone."""
    return Treatment(**{name: getattr(entry, name) for name in Treatment.model_fields})


def _called(entry: BucketEntry | PatternEntry) -> str:
    return f"pattern {entry.pattern!r}" if isinstance(entry, PatternEntry) else f"the bucket of {entry.parameters[0]!r}"
