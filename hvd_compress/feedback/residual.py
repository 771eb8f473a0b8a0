"""The residual of a bucket: what was not sent, in memory that a step can fail in, and be taken back in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

_CPU = torch.device("cpu")

SAMPLE_BLOCK, SAMPLE_BLOCKS = 256, 256
"""Elements in a block, and blocks, evenly spread, from which a norm is estimated."""


class Deferred(Protocol):
    """What a step sent of a corrected gradient that it has left in a residual's memory."""

    def subtracted(self, corrected: torch.Tensor, part: slice) -> torch.Tensor:
        """Return the residual of a part of the bucket, in new memory. corrected: (numel,) fp32."""
        ...


@dataclass(frozen=True)
class Buffer:
    """Memory of a residual.

    Attributes:
        memory: (numel,) fp32: the residual or, with `deferred`, the corrected gradient.
        deferred: what is still to be subtracted of it.
    """

    memory: torch.Tensor
    deferred: Deferred | None = None

    def read(self, part: slice | None = None) -> torch.Tensor:
        """Return the residual, or a part of it: the memory itself, or new memory where something is subtracted."""
        if self.deferred is not None:
            return self.deferred.subtracted(self.memory, part or slice(None))
        return self.memory if part is None else self.memory[part]


class Residual:
    """The residual of one bucket, and the buffer in which a step prepares its successor.

    A step reads `current` and writes `pending`; commit() exchanges the two. Until then nothing has changed, so a step
    that ends in a non-finite gradient or an error leaves the residual as it was. Both are fp32, (numel,), and lie where
    the bucket is compressed.

    A compressor may leave the corrected gradient, and the subtraction of what was sent to the step that reads it next:
    a pass over memory less (defer()). Whoever else reads in the meantime, in whatever thread, gets the residual and
    changes nothing.

    Attributes:
        kept: of `current`.
        may_defer: whether a compressor may: not where this is a part of another residual, which would not know of it.
        can_revert: whether the other memory still holds what the last commit replaced.
    """

    def __init__(self, current: torch.Tensor, pending: torch.Tensor, may_defer: bool = False) -> None:
        self.kept, self._next, self.may_defer = Buffer(current), Buffer(pending), may_defer
        self._is_left = False  # whether this step has deferred something
        self.can_revert = False

    @classmethod
    def zeros(cls, numel: int, device: torch.device = _CPU) -> Residual:
        """Return that of a bucket before its first step, which is the first to write to `pending`."""
        current = torch.zeros(numel, dtype=torch.float32, device=device)
        return cls(current, torch.empty_like(current), may_defer=True)

    @property
    def current(self) -> torch.Tensor:
        """Only to be read: a copy, where something is deferred."""
        return self.kept.read()

    @property
    def pending(self) -> torch.Tensor:
        """What is written to it becomes the residual."""
        if self._is_left:
            self._next.memory.copy_(self._next.read())
        self._next, self._is_left = Buffer(self._next.memory), False
        return self._next.memory

    @property
    def memory(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of both, whatever it holds."""
        return self.kept.memory, self._next.memory

    @property
    def replaced(self) -> Deferred | None:
        """What was deferred in the memory that the next step writes to: it may be used again."""
        return self._next.deferred

    def defer(self, deferred: Deferred) -> None:
        """`memory[1]` holds corrected, and becomes the residual by this subtraction."""
        self._next, self._is_left = Buffer(self._next.memory, deferred), True

    def settle(self) -> torch.Tensor:
        """Return `current` as memory to write to. For who writes between steps."""
        if self.kept.deferred is not None:
            self.kept = Buffer(self.kept.memory.copy_(self.kept.read()))
        return self.kept.memory

    def commit(self) -> None:
        self.kept, self._next, self._is_left = self._next, self.kept, False
        self.can_revert = True

    def revert(self) -> None:
        """Take the last commit back, where that can be."""
        if self.can_revert:
            self.kept, self._next, self.can_revert = self._next, self.kept, False

    def discard(self) -> None:
        """What the step has left means nothing."""
        self._is_left = False

    def restore(self, part: slice) -> None:
        """Take the last commit back in a part of the bucket, where that can be."""
        if self.can_revert:
            self.settle()[part] = self.before(part)

    def before(self, part: slice) -> torch.Tensor:
        """Return a part of what revert() would bring back; of the residual, where it would bring back nothing."""
        return (self._next if self.can_revert else self.kept).read(part)

    def end(self) -> None:
        """Other residuals take over: no step prepares a successor any more. What could be reverted to stays."""
        if not self.can_revert:
            self._next = Buffer(self._next.memory.new_empty(0))

    def begin(self, part: slice, value: torch.Tensor) -> None:
        """Begin a part with what another residual has held."""
        self.settle()[part] = value

    def begin_before(self, part: slice, value: torch.Tensor | float) -> None:
        """And with what it could be reverted to; called for all parts, or for none."""
        self._next.memory[part], self.can_revert = value, True

    def square_norm(self) -> torch.Tensor:
        """Return ||current||^2, as a tensor () of float64; 65,536 elements stand for more."""
        whole = self.current
        apart = whole.numel() // (SAMPLE_BLOCKS * SAMPLE_BLOCK) * SAMPLE_BLOCK
        sample = whole.as_strided((SAMPLE_BLOCKS, SAMPLE_BLOCK), (apart, 1)) if apart > SAMPLE_BLOCK else whole
        norm: torch.Tensor = torch.linalg.vector_norm(sample)
        return norm.double().square() * (whole.numel() / max(1, sample.numel()))
