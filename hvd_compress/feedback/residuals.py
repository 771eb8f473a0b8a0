"""Residuals: for each parameter, what compression has not sent yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

_CPU = torch.device("cpu")

SAMPLE_BLOCK, SAMPLE_BLOCKS = 256, 256
"""A norm is estimated from so many blocks of so many elements, evenly spread."""


@dataclass
class BucketResidual:
    """The residual of one bucket, and the buffer in which a step prepares its successor.

    A step reads `current` and writes `pending`; commit() exchanges the two. Until then nothing has changed, so a step
    that ends in a non-finite gradient or an error leaves the residual as it was. Both are fp32, (numel,), and lie where
    the bucket is compressed.
    """

    current: torch.Tensor
    pending: torch.Tensor

    def commit(self) -> None:
        self.current, self.pending = self.pending, self.current

    def square_norm(self) -> torch.Tensor:
        """Return ||current||^2, as a tensor () of float64; 65,536 elements stand for more."""
        whole = self.current
        apart = whole.numel() // (SAMPLE_BLOCKS * SAMPLE_BLOCK) * SAMPLE_BLOCK
        sample = whole.as_strided((SAMPLE_BLOCKS, SAMPLE_BLOCK), (apart, 1)) if apart > SAMPLE_BLOCK else whole
        norm: torch.Tensor = torch.linalg.vector_norm(sample)
        return norm.double().square() * (whole.numel() / max(1, sample.numel()))


class Residuals:
    """All residuals of a rank, keyed by parameter name, so that they outlive a change of buckets.

    Memory: 8 bytes an element of the buckets that are bound.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, torch.Tensor] = {}  # loaded from a checkpoint, or of parameters in no bucket
        self._places: dict[str, tuple[BucketResidual, int, int]] = {}

    def bind(self, names: Sequence[str], segments: Sequence[int], device: torch.device = _CPU) -> BucketResidual:
        """Give the parameters of a new bucket their place in one flat buffer, with what is remembered of them."""
        numel = sum(segments)
        bucket = BucketResidual(*(torch.zeros(numel, dtype=torch.float32, device=device) for _ in range(2)))
        start = 0
        for name, length in zip(names, segments, strict=True):
            kept = self._read(name)
            if kept is not None:
                bucket.current[start : start + length] = kept
            self._waiting.pop(name, None)
            self._places[name] = (bucket, start, start + length)
            start += length
        return bucket

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of every residual, (numel,) fp32, on the CPU wherever it lies, by parameter name."""
        names = sorted({**self._waiting, **self._places})
        return {name: residual.to(_CPU, copy=True) for name in names if (residual := self._read(name)) is not None}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], numels: Mapping[str, int]) -> None:
        """Replace all residuals. Parameters that `state` lacks start again from zero.

        Args:
            state: as state_dict() gives it.
            numels: numel of each parameter that there is.

        Raises:
            ValueError: a residual is of an unknown parameter, or has another numel; nothing has changed then.
        """
        for name, residual in state.items():
            if name not in numels:
                raise ValueError(
                    f"a residual of parameter {name!r} was saved, and there is no such parameter: pass the same "
                    "named_parameters as when it was saved, or remove state['hvd_compress'] to start from zero"
                )
            if residual.numel() != numels[name]:
                raise ValueError(f"the residual of {name!r} has {residual.numel()} elements instead of {numels[name]}")
        self._waiting = {}
        for name in numels:
            value = state.get(name)
            if name in self._places:
                bucket, start, stop = self._places[name]
                bucket.current[start:stop] = 0 if value is None else value.reshape(-1)
            elif value is not None:
                self._waiting[name] = value.detach().reshape(-1).to(_CPU, torch.float32, copy=True)

    def keep(self) -> Callable[[], None]:
        """Copy all residuals where they lie; return what brings them back to the bit, as often as it is called."""
        buckets = {id(bucket): bucket for bucket, _, _ in self._places.values()}.values()
        kept = [(bucket, bucket.current.clone()) for bucket in buckets]

        def restore() -> None:
            for bucket, copied in kept:
                bucket.current.copy_(copied)

        return restore

    def scale(self, factor: float) -> None:
        """Multiply every residual, for instance when the loss scale of mixed precision changes by `factor`."""
        for residual in self._waiting.values():
            residual.mul_(factor)
        for bucket, start, stop in self._places.values():
            bucket.current[start:stop].mul_(factor)

    def _read(self, name: str) -> torch.Tensor | None:
        if name in self._places:
            bucket, start, stop = self._places[name]
            return bucket.current[start:stop]
        return self._waiting.get(name)
