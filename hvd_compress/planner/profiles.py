"""The planner's three inputs as files: of a model, of a compressor, and of the system (Espresso, Figure 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from hvd_compress import schema
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.errors import ConfigError

MODEL, COMPRESSOR, SYSTEM = "model.json", "compressor.json", "system.json"
"""The files of a folder with a whole profile."""
NAMES: Mapping[str, str] = {"model": MODEL, "system": SYSTEM, "compressor": COMPRESSOR}
"""The same by what they are of."""
PROGRESS = "progress.json"
"""Beside them while steps are recorded: {"steps": so many, "of": so many}, with those that are skipped."""

Device = Literal["training", "host"]
"""What compresses: the device that trains, a GPU or not, or the host's CPU beside a GPU."""
ELEMENT_BYTES = 4
"""Of gradients, which are fp32."""


class Tensor(schema.Strict):
    """A parameter's gradient.

    Attributes:
        numel: its elements, of ELEMENT_BYTES each.
        backward_us: microseconds of backward compute since the gradient before was ready.
        backward_us_sd: their standard deviation over steps.
        shape: of the parameter, where it is known.
    """

    name: str
    numel: int = Field(ge=1)
    backward_us: float = Field(ge=0)
    backward_us_sd: float | None = Field(default=None, ge=0)
    shape: tuple[int, ...] | None = None

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
    """

    kind: Literal["hvd_compress/model"] = Field(default="hvd_compress/model", alias="schema")
    version: Literal[1] = 1
    model: str
    tensors: tuple[Tensor, ...] = Field(min_length=1)
    forward_us: float = Field(default=0.0, ge=0)
    forward_us_sd: float | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=1)
    parameters: int | None = None
    order: str = ""
    units: dict[str, str] = Field(default_factory=dict)
    source: str = ""

    @model_validator(mode="after")
    def _adds_up(self) -> ModelProfile:
        total = sum(tensor.numel for tensor in self.tensors)
        if self.parameters is not None and self.parameters != total:
            raise ValueError(f"parameters is {self.parameters}, and the tensors have {total} elements")
        return self


class Times(schema.Strict):
    """Microseconds of an operation by the number of elements of the tensor that is compressed."""

    numel: tuple[int, ...] = Field(min_length=1)
    us: tuple[float, ...]

    @model_validator(mode="after")
    def _ordered(self) -> Times:
        self.curve()
        return self

    def curve(self) -> Curve:
        """Return seconds by elements. Raises ConfigError where sizes do not increase, or times decrease or are 0."""
        return Curve(self.numel, tuple(us * 1e-6 for us in self.us))


class DeviceTimes(schema.Strict):
    """Of one payload: making it, and adding what it stands for to a tensor."""

    compress: Times
    decompress: Times


class PayloadSize(schema.Strict):
    """Bytes of the payload of n elements: per_tensor_bytes + per_element_bytes * n."""

    per_tensor_bytes: float = Field(default=0.0, ge=0)
    per_element_bytes: float = Field(gt=0)

    def nbytes(self, numel: float) -> float:
        """Return those of so many elements."""
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

    @field_validator("compressor")
    @classmethod
    def _named(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(settings.get("name"), str):
            raise ValueError('needs a name, such as {"name": "topk", "ratio": 0.01}')
        return settings


class Link(schema.Strict):
    """A network among ranks: alpha and beta, and curves where collectives were measured.

    Attributes:
        alpha_us: microseconds of a message without content.
        bytes_per_s: of a rank within a host; of a whole host across hosts.
        curves: as cost.Curves.to_json() has them, measured with as many ranks as the link connects.
    """

    alpha_us: float = Field(ge=0)
    bytes_per_s: float = Field(gt=0)
    curves: tuple[dict[str, Any], ...] = ()


class SystemProfile(schema.Strict):
    """The machines: `hosts` with `ranks_per_host` each, and the links within a host and across hosts."""

    kind: Literal["hvd_compress/system"] = Field(default="hvd_compress/system", alias="schema")
    version: Literal[1] = 1
    hosts: int = Field(ge=1)
    ranks_per_host: int = Field(ge=1)
    within: Link
    across: Link
    source: str = ""

    @model_validator(mode="after")
    def _measured(self) -> SystemProfile:
        self.curves()
        return self

    def curves(self) -> Mapping[str, Curves]:
        """Return the measured curves by the name of their link. Raises ConfigError that names the link."""
        found = {}
        for name, link, ranks in (("within", self.within, self.ranks_per_host), ("across", self.across, self.hosts)):
            if link.curves:
                try:
                    found[name] = Curves.from_json(ranks, link.curves)
                except ConfigError as error:
                    raise ConfigError(f"{name}.curves: {error}") from None
        return found


Profile = TypeVar("Profile", ModelProfile, CompressorProfile, SystemProfile)

_CALLED: Mapping[type[Any], str] = {
    ModelProfile: "profile of a model",
    CompressorProfile: "profile of a compressor",
    SystemProfile: "profile of a system",
}


def read(path: str | Path, kind: type[Profile]) -> Profile:
    """Read a profile. Raises PlanError that names what is wrong by its path in the file."""
    return schema.read(path, kind, _CALLED[kind])


def write(path: str | Path, profile: ModelProfile | CompressorProfile | SystemProfile) -> None:
    """Write a profile. Raises PlanError where it cannot be written."""
    said = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    schema.write(path, {name: value for name, value in said.items() if value != ""}, _CALLED[type(profile)])
