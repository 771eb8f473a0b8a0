"""Gradients to compress: from a file, or of given shapes and drawn from a seed."""

from __future__ import annotations

import json
import math
import reprlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import is_whole
from hvd_compress.errors import ConfigError

SHAPES: dict[str, tuple[int, ...]] = {
    "fc.bias": (1000,),
    "fc.weight": (1000, 2048),
    "layer4.2.bn3.weight": (2048,),
    "layer4.2.bn3.bias": (2048,),
    "layer4.2.conv3.weight": (2048, 512, 1, 1),
    "layer4.2.bn2.weight": (512,),
    "layer4.2.bn2.bias": (512,),
    "layer4.2.conv2.weight": (512, 512, 3, 3),
    "layer4.2.bn1.weight": (512,),
    "layer4.2.bn1.bias": (512,),
    "layer4.2.conv1.weight": (512, 2048, 1, 1),
}
"""The last layers of ResNet-50, which are the first of the backward pass: 6.5M elements, 26 MB, about one bucket of
DDP."""
FEWEST_OF_MATRIX = 4096
"""In a trace, which has no shapes: a tensor of fewer elements, or a bias, is a vector."""
_SHIFT = 7919
"""Elements by which the noise of one rank and step lies beside that of the next."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of one bucket on all ranks in all steps: what they have in common, and noise.

    Attributes:
        layout: the parameters.
        common: (numel,) fp32, the part that all ranks and steps share.
        unit_noise: (numel,) fp32 with a mean square of 1; each rank and step has it shifted by as many elements.
        noise: the noise of a parameter in units of the root mean square of its `common`.
    """

    layout: Layout
    common: torch.Tensor
    unit_noise: torch.Tensor
    noise: float

    @classmethod
    def of(cls, layout: Layout, common: torch.Tensor, noise: float, seed: int) -> Gradients:
        """Return the gradients around given values."""
        return cls(layout, common, heavy_tailed(layout.numel, seed + 1), noise)

    def write(self, rank: int, step: int, ranks: int, out: torch.Tensor) -> None:
        """Write the gradient of a rank in a step, out of `ranks`, to `out` (numel,)."""
        if self.noise == 0:
            out.copy_(self.common)
            return
        shifted = self.unit_noise.roll(_SHIFT * (step * ranks + rank))
        segments = list(self.layout.segments)
        for common, unit, own in zip(*(torch.split(t, segments) for t in (self.common, shifted, out)), strict=True):
            rms = float(torch.linalg.vector_norm(common)) / math.sqrt(max(1, common.numel()))
            torch.add(common, unit, alpha=self.noise * rms, out=own)


def heavy_tailed(numel: int, seed: int) -> torch.Tensor:
    """Return normal numbers, each times the exponential of another one: (numel,) fp32 with a mean square of 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator)
    x *= torch.randn(numel, generator=generator).exp_()
    return x.mul_(math.sqrt(numel) / max(float(torch.linalg.vector_norm(x)), 1e-30))


def synthetic(shapes: Mapping[str, tuple[int, ...]], seed: int) -> tuple[Layout, torch.Tensor]:
    """Return a layout and values (numel,) with heavy tails, whose parameters differ in size by a factor."""
    layout = Layout(tuple(shapes), tuple(shapes.values()))
    values = heavy_tailed(layout.numel, seed)
    sizes = torch.randn(len(shapes), generator=torch.Generator().manual_seed(seed + 2)).exp_()
    for part, size in zip(torch.split(values, list(layout.segments)), sizes.tolist(), strict=True):
        part.mul_(size)
    return layout, values


def read_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read shapes such as "1024x1024,1000": dimensions with x between, tensors with commas between.

    Raises:
        ConfigError: a dimension is no whole number, 1 or more.
    """
    found = {}
    for number, shape in enumerate(text.split(",")):
        sizes = shape.strip().lower().split("x")
        if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
            raise ConfigError(f"{shape.strip()!r} is not a shape: expected whole numbers with x between, as 1024x1024")
        found[str(number)] = tuple(int(size) for size in sizes)
    return found


def read_trace(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the tensors of a trace, in its order: JSON with a list "tensors" of objects with "name" and "numel".

    A trace has no shapes. What is no bias and has FEWEST_OF_MATRIX elements is taken as a matrix, as near to a square
    as its divisors allow.

    Raises:
        ConfigError: it cannot be read or is no trace; it names the path.
    """
    try:
        tensors = json.loads(path.read_text())["tensors"]
        named = {tensor["name"]: tensor["numel"] for tensor in tensors}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f'{path} is not a trace: expected JSON as {{"tensors": [{{"name": "fc.weight", "numel": 2048000}}, ...]}} '
            f"({type(error).__name__}: {error})"
        ) from error
    for name, numel in named.items():
        if not isinstance(name, str) or not is_whole(numel, 1, native.MAX_NUMEL):
            raise ConfigError(
                f"{path}: tensor {reprlib.repr(name)} has numel {reprlib.repr(numel)}, expected a whole number from 1 "
                f"to {native.MAX_NUMEL:,}, the most of a bucket"
            )
    if not named or len(named) != len(tensors):
        raise ConfigError(f"{path} has {len(tensors)} tensors with {len(named)} names: expected one or more, all named")
    if (total := sum(named.values())) > native.MAX_NUMEL:
        raise ConfigError(f"{path}: {total:,} elements are more than {native.MAX_NUMEL:,}, the most of a bucket")
    return {name: _guessed(name, numel) for name, numel in named.items()}


def _guessed(name: str, numel: int) -> tuple[int, ...]:
    if numel < FEWEST_OF_MATRIX or "bias" in name:
        return (numel,)
    rows = next(rows for rows in range(math.isqrt(numel), 0, -1) if numel % rows == 0)
    return (rows, numel // rows)


def read_gradient(path: Path) -> tuple[Layout, torch.Tensor]:
    """Read a tensor, or tensors by parameter name, as torch.save writes them, or an array from numpy.save.

    Returns:
        The layout, and all values (numel,) as fp32.

    Raises:
        ConfigError: it cannot be read, or holds anything but dense tensors of finite numbers; it names the path.
    """
    saved = _loaded(path)
    named = saved if isinstance(saved, Mapping) else {path.stem: saved}
    if not named:
        raise ConfigError(f"{path} holds no tensor")
    for name, tensor in named.items():
        problem = _problem(name, tensor)
        if problem:
            raise ConfigError(
                f"{path} holds {problem}; expected a dense tensor of finite numbers, or a dict of them by parameter "
                "name, as torch.save writes it"
            )
    layout = Layout(tuple(named), tuple(tuple(tensor.shape) or (1,) for tensor in named.values()))
    return layout, torch.cat([tensor.detach().reshape(-1).float() for tensor in named.values()])


def read_tensor(path: Path) -> torch.Tensor:
    """Read one tensor, as torch.save writes it, or an array from numpy.save; return it as (numel,) fp32.

    Raises:
        ConfigError: it cannot be read, or is no dense tensor of finite numbers; it names the path.
    """
    saved = _loaded(path)
    if problem := _problem(path.stem, saved):
        raise ConfigError(f"{path} must hold one dense tensor of finite numbers, and holds {problem}")
    flat: torch.Tensor = saved.detach().reshape(-1).float()
    return flat


def _loaded(path: Path) -> Any:
    """Return what a file holds. Raises ConfigError where that cannot be said: what unpickles may raise anything."""
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return torch.from_numpy(numpy.load(file, allow_pickle=False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sparse tensors, which are refused anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        wanted = "an array from numpy.save" if path.suffix == ".npy" else "tensors from torch.save"
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} cannot be read: expected {wanted} ({words})") from error


def _problem(name: object, tensor: object) -> str | None:
    """Return what is wrong with an entry of a file, or None."""
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__} under {name!r}"
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        return f"a tensor {name!r} of {tensor.dtype}, {tensor.layout}"
    if tensor.numel() == 0:
        return f"an empty tensor {name!r}"
    finite = bool(tensor.float().isfinite().all())
    return None if finite else f"NaN or Inf in {name!r}, as fp32"
