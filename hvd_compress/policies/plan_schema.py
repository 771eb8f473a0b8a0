"""What a plan says: per bucket, or per pattern of parameter names, how its gradients travel; and whether that fits."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator

from hvd_compress import collectives, schema
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.names import EngineName
from hvd_compress.policies.plan_settings import compressor_of, dtype_name
from hvd_compress.request.request import Request

VERSION, MOST_RANKS = 1, 1 << 20


class Treatment(schema.Strict):
    """How buckets travel.

    Attributes:
        compressor: its `name` in COMPRESSORS, and its settings.
        collective, algorithm: as a path has them; "auto" is what the request of that compressor alone would take.
            Earlier versions wrote `scheme`.
        broadcast: of AR-Topk's indices.
        device: what compresses: "auto", "cpu" or "cuda".
    """

    compressor: dict[str, Any] = Field(default_factory=lambda: {"name": "cast"})
    collective: str = Field(default="auto", validation_alias=AliasChoices("collective", "scheme"))
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
        names = [name for name in collectives.names_for(compressor) if len(collectives.meanings(name)) == 1]
        if self.collective not in ("auto", *names) and not collectives.is_of_guest(self.collective):
            raise ValueError(f"collective {self.collective!r} cannot carry {compressor}; auto, {', '.join(names)} can")
        if self.collective == "auto" and self.broadcast != "auto":
            raise ValueError(f"broadcast {self.broadcast!r} needs a collective that broadcasts: name it")
        self.request()
        if self.collective != "auto":
            collectives.build(compressor, self.path)
        return self

    @property
    def path(self) -> Path:
        """Its path; its collective may be "auto"."""
        return Path(self.collective, self.algorithm, self.broadcast)

    def built(self) -> Compressor:
        """Return the compressor."""
        return compressor_of(self.compressor)

    def request(self) -> Request:
        """Return what is asked for where the collective is open."""
        algorithm = self.algorithm if self.collective == "auto" else "auto"
        return Request(self.built(), algorithm=algorithm, device=self.device)

    def describe(self) -> str:
        """Return it in words."""
        return f"{self.built()} by {self.path}"


class BucketEntry(Treatment):
    """Parameters that are one bucket, in this order.

    Attributes:
        option: of the planner's tree, which `collective` carries out; for `hvd-compress plan compare`.
        reason: of the choice, for people.
    """

    parameters: tuple[str, ...] = Field(min_length=1)
    option: str | None = None
    reason: str = ""


class PatternEntry(Treatment):
    """Parameters whose names match, as `*.weight` does; cut into buckets as usual, which they share with no others."""

    pattern: str


class Parameter(schema.Strict):
    """What a parameter must be like; of any dtype where none is said. The shape of a complex one ends with 2."""

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
        engine: that it was made for, as a request names it; None for any. In a job with another one it is run all the
            same, where that can, with a warning.
        prediction: of the planner, where that made it; nothing is decided by it.
    """

    version: Literal[1]
    world_size: int | None = Field(default=None, ge=1, le=MOST_RANKS)
    model: dict[str, Parameter] | None = None
    engine: EngineName | None = None
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
                continue
            actual = layout.shapes[0], dtype_name(layout.element_dtype)
            if actual != (wanted.shape, wanted.dtype or actual[1]):
                yield (
                    f"{name!r} is {list(actual[0])} {actual[1]}, and {list(wanted.shape)} "
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


def _only(entry: Treatment) -> Treatment:
    """Return the treatment of an entry alone."""
    return Treatment(**{name: getattr(entry, name) for name in Treatment.model_fields})


def _called(entry: BucketEntry | PatternEntry) -> str:
    return f"pattern {entry.pattern!r}" if isinstance(entry, PatternEntry) else f"the bucket of {entry.parameters[0]!r}"
