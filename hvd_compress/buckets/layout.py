"""The layout of a bucket: which parameters lie in it, in which order. The same on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch

COMPLEX = " complex"
"""The end of a place whose gradients are complex."""


@dataclass(frozen=True)
class Layout:
    """Parameters that travel together: all of one dtype and place, in the order in which they lie in the bucket.

    Attributes:
        names: of the parameters.
        shapes: of the parameters.
        dtype: of all of them.
        place: tells devices of a rank apart, the same on all ranks.
        sparse: whether the gradient is sparse on some rank: its rows travel. One parameter then.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    place: str = "cpu"
    sparse: bool = False

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.shapes), f"{len(self.names)} names for {len(self.shapes)} shapes"

    @classmethod
    def of(cls, *shapes: int | tuple[int, ...], dtype: torch.dtype = torch.float32) -> Layout:
        """Return the layout of parameters that are named by their numbers."""
        return cls(
            tuple(map(str, range(len(shapes)))), tuple((s,) if isinstance(s, int) else tuple(s) for s in shapes), dtype
        )

    @cached_property
    def segments(self) -> tuple[int, ...]:
        """The numel of each parameter; they add up to the bucket's."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def numel(self) -> int:
        return sum(self.segments)

    @property
    def element_dtype(self) -> torch.dtype:
        """Of the gradients as the program has them: complex ones travel as real ones."""
        return self.dtype.to_complex() if self.place.endswith(COMPLEX) else self.dtype

    @property
    def device_type(self) -> str:
        """The kind of device on which the gradients lie."""
        return self.place.partition(" ")[0]

    @property
    def called(self) -> str:
        """Its first parameter, and how many there are beside it: what messages call it."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1} more"

    @property
    def nbytes(self) -> int:
        """Bytes of the gradient."""
        return self.numel * self.dtype.itemsize

    def part(self, part: slice, dtype: torch.dtype = torch.float32) -> Layout:
        """Return the layout of a run of the bucket's elements: a parameter that it cuts is flat there."""
        names, shapes, start = [], [], 0
        for name, shape, numel in zip(self.names, self.shapes, self.segments, strict=True):
            length = min(part.stop, start + numel) - max(part.start, start)
            if length > 0:
                names.append(name)
                shapes.append(shape if length == numel else (length,))
            start += numel
        return replace(self, names=tuple(names), shapes=tuple(shapes), dtype=dtype)
