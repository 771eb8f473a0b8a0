"""The planner's three inputs as files: of a model, of a compressor, and of the system (Espresso, Figure 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import Field, field_validator, model_validator

from hvd_compress import schema
from hvd_compress.cost.curves import Curves
from hvd_compress.engines.names import EngineName
from hvd_compress.errors import PlanError
from hvd_compress.profiler.curves import LogCurve

MODEL, COMPRESSOR, SYSTEM = "model.json", "compressor.json", "system.json"
"""The files of a folder with a whole profile."""
NAMES: Mapping[str, str] = {"model": MODEL, "system": SYSTEM, "compressor": COMPRESSOR}
"""The same by what they are of."""
PROGRESS = "progress.json"
"""Beside them while steps are recorded: {"steps": done, "of": all of them}, with those that are skipped; and
"obstacle", where it has come to nothing."""

MOST_ELEMENTS, MOST_BYTES, LONGEST_US, MOST_RANKS, MOST_BYTES_PER_S = 1 << 40, 1e15, 1e10, 1 << 20, 1e18
"""Beyond anything that there is, and small enough that what is computed from it fits the planner's 64 bits."""
MOST_TRACKS = 8
"""Buckets in flight: kMostTracks in csrc/planner/problem.hpp, and as many as HVD_COMPRESS_IN_FLIGHT may ask for."""
Elements = Annotated[int, Field(ge=1, le=MOST_ELEMENTS)]
Micros = Annotated[float, Field(ge=0, le=LONGEST_US)]
Bytes = Annotated[float, Field(ge=0, le=MOST_BYTES)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]

Device = Literal["training", "host"]
"""What compresses: the device that trains, a GPU or not, or the host's CPU beside a GPU."""
Dtype = Literal["float64", "float32", "float16", "bfloat16", "complex128", "complex64"]
ELEMENT_BYTES = 4
"""Of an element: all gradients are taken to be fp32, as they are summed."""


class Tensor(schema.Strict):
    """A parameter's gradient.

    Attributes:
        numel: its elements, of ELEMENT_BYTES each.
        backward_us: microseconds of backward compute since the gradient before was ready.
        backward_us_sd: their standard deviation over steps.
        shape: in which it travels, where it is known: the parameter's, with a last dimension of 2 of a complex one.
        dtype: of the gradient, as torch calls it, where it is known. Those of different ones share no bucket.
    """

    name: str
    numel: Elements
    backward_us: Micros
    backward_us_sd: Micros | None = None
    shape: tuple[Elements, ...] | None = Field(default=None, max_length=64)
    dtype: Dtype | None = None

    @model_validator(mode="after")
    def _fits(self) -> Tensor:
        if self.shape is not None and math.prod(self.shape) != self.numel:
            raise ValueError(
                f"shape {list(self.shape)} has {math.prod(self.shape)} elements, and numel is {self.numel}"
            )
        return self


class ModelProfile(schema.Strict):
    """A model's gradients in the order of the backward pass. The traces of Espresso's authors are such files.

    Attributes:
        forward_us: microseconds of a step before the backward pass, with the update of the step before.
        forward_us_sd: their standard deviation over steps.
        steps: of which figures are means.
        parameters: the sum of all `numel`, where it is given.
        order, units, source: for people.
        run: the id of the run that has measured it, as of every file of a profile; nothing where a person wrote it.
    """

    kind: Literal["hvd_compress/model"] = Field(default="hvd_compress/model", alias="schema")
    version: Literal[1] = 1
    model: str
    tensors: tuple[Tensor, ...] = Field(min_length=1)
    forward_us: Micros = 0.0
    forward_us_sd: Micros | None = None
    steps: int | None = Field(default=None, ge=1)
    parameters: int | None = None
    order: str = ""
    units: dict[str, str] = Field(default_factory=dict)
    source: str = ""
    run: str = ""

    @model_validator(mode="after")
    def _adds_up(self) -> ModelProfile:
        total = sum(tensor.numel for tensor in self.tensors)
        if self.parameters is not None and self.parameters != total:
            raise ValueError(f"parameters is {self.parameters}, and the tensors have {total} elements")
        if total > MOST_ELEMENTS:
            raise ValueError(f"tensors: their numel add up to {total}, and {MOST_ELEMENTS} are the most")
        backward_us = sum(tensor.backward_us for tensor in self.tensors)
        if backward_us > LONGEST_US:
            raise ValueError(f"tensors: their backward_us add up to {backward_us:g}, and {LONGEST_US:g} are the most")
        return self


class Times(schema.Strict):
    """Microseconds of an operation by the number of elements of the tensor that is compressed."""

    numel: tuple[Elements, ...] = Field(min_length=1)
    us: tuple[Micros, ...]

    @model_validator(mode="after")
    def _ordered(self) -> Times:
        self.curve()
        return self

    def curve(self) -> LogCurve:
        """Return seconds by elements. Raises ConfigError where sizes do not increase, or times decrease or are 0."""
        return LogCurve(self.numel, tuple(us * 1e-6 for us in self.us))


class DeviceTimes(schema.Strict):
    """Of one payload: making it, and adding what it stands for to a tensor."""

    compress: Times
    decompress: Times


class PayloadSize(schema.Strict):
    """Bytes of the payload of n elements: per_tensor_bytes + per_element_bytes * n."""

    per_tensor_bytes: Bytes = 0.0
    per_element_bytes: float = Field(gt=0, le=1e6)

    def nbytes(self, numel: float) -> float:
        """Return the bytes of `numel` elements."""
        return self.per_tensor_bytes + self.per_element_bytes * numel


class CompressorProfile(schema.Strict):
    """What a compressor takes.

    Attributes:
        compressor: its `name` in hvd_compress.compressors.COMPRESSORS and its settings, as a plan has them.
        devices: by device; one that is missing cannot compress.
    """

    kind: Literal["hvd_compress/compressor"] = Field(default="hvd_compress/compressor", alias="schema")
    version: Literal[1] = 1
    compressor: dict[str, Any]
    payload: PayloadSize
    devices: dict[Device, DeviceTimes] = Field(min_length=1)
    source: str = ""
    run: str = ""

    @field_validator("compressor")
    @classmethod
    def _named(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(settings.get("name"), str):
            raise ValueError('needs a name, such as {"name": "topk", "ratio": 0.01}')
        return settings


class CurveRow(schema.Strict):
    """Seconds of one collective by bytes, as cost.Curves.to_json() has them."""

    verb: str
    algorithm: str
    bytes: tuple[Annotated[int, Field(ge=1, le=MOST_BYTES)], ...]
    seconds: tuple[Annotated[float, Field(gt=0, le=1e-6 * LONGEST_US)], ...]

    @model_validator(mode="after")
    def _ordered(self) -> CurveRow:
        LogCurve(self.bytes, self.seconds)
        return self


class Link(schema.Strict):
    """A network among ranks: alpha and beta, and curves where collectives were measured.

    Attributes:
        alpha_us: microseconds of a message without content.
        bytes_per_s: of a rank within a host; of a whole host across hosts.
        curves: measured with as many ranks as the link connects.
    """

    alpha_us: Micros
    bytes_per_s: float = Field(ge=1, le=MOST_BYTES_PER_S)
    curves: tuple[CurveRow, ...] = ()


class SystemProfile(schema.Strict):
    """The machines: `hosts` with `ranks_per_host` each, and the links within a host and across hosts.

    Attributes:
        engine: over which the links were measured; None where a person wrote them.
        in_flight: how many buckets a job exchanges at a time.
    """

    kind: Literal["hvd_compress/system"] = Field(default="hvd_compress/system", alias="schema")
    version: Literal[1] = 1
    hosts: Ranks
    ranks_per_host: Ranks
    within: Link
    across: Link
    engine: EngineName | None = None
    in_flight: int = Field(default=1, ge=1, le=MOST_TRACKS)
    source: str = ""
    run: str = ""

    def curves(self) -> Mapping[str, Curves]:
        """Return the measured curves by the name of their link."""
        links = (("within", self.within, self.ranks_per_host), ("across", self.across, self.hosts))
        return {
            name: Curves(ranks, {(row.verb, row.algorithm): LogCurve(row.bytes, row.seconds) for row in link.curves})
            for name, link, ranks in links
            if link.curves
        }


Profile = TypeVar("Profile", ModelProfile, CompressorProfile, SystemProfile)
AnyProfile = ModelProfile | CompressorProfile | SystemProfile

_CALLED: Mapping[type[Any], str] = {
    ModelProfile: "profile of a model",
    CompressorProfile: "profile of a compressor",
    SystemProfile: "profile of a system",
}


def engine_name(engine: str) -> EngineName | None:
    """Return how a request names an engine that calls itself so; None for one that it cannot name."""
    return next((name for name in get_args(EngineName) if name == engine.lower()), None)


def read(path: str | Path, kind: type[Profile]) -> Profile:
    """Read a profile. Raises PlanError that names what is wrong by its path in the file."""
    return schema.read(path, kind, _CALLED[kind])


def require_one_run(found: Mapping[Path, AnyProfile]) -> None:
    """Check the files that a command has read: those of one profile, which lie in one folder, are of one run.

    Raises PlanError where they are of several, as after a run that was killed while it replaced those of another. Files
    without a run, which people wrote, fit all; so do those that lie elsewhere or are called otherwise.
    """
    for path, profile in found.items():
        for other, beside in found.items():
            together = path.resolve().parent == other.resolve().parent and {path.name, other.name} <= {*NAMES.values()}
            if together and profile.run and beside.run and profile.run != beside.run:
                raise PlanError(
                    f"{path} and {other.name} beside it are of different runs, {profile.run} and {beside.run}: profile "
                    "again; or, where that is meant, name the file of the other run as it lies in a folder of its own"
                )


def write(path: str | Path, profile: AnyProfile) -> None:
    """Write a profile. Raises PlanError where it cannot be written."""
    said = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    schema.write(path, {name: value for name, value in said.items() if value != ""}, _CALLED[type(profile)])
