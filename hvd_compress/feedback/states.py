"""What buckets remember between steps: residuals, and what compressors keep beside them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.warned import warn_caller

_CPU = torch.device("cpu")

SAMPLE_BLOCK, SAMPLE_BLOCKS = 256, 256
"""Elements in a block, and blocks, evenly spread, from which a norm is estimated."""

Key = tuple[str, str]
"""The kind of a compressor's own state, such as "powersgd.q", and the parameter that it belongs to."""

GRADIENT_UNITS = "gradient:"
"""A kind that begins so is in units of the gradient, and follows a loss scale as residuals do."""

RESULT_SUM = f"{GRADIENT_UNITS}result.sum"
"""The kind of a sum of results over steps, (numel,) fp32, which a policy compares: kept beside compressors' states."""


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


@dataclass
class BucketState:
    """What one bucket remembers between steps. Every part of a step is committed, or none.

    Attributes:
        residual: None where the compressor has no error feedback.
        current: what the compressor keeps beside it, as the last committed step left it; never written in place, but
            for sums of results, behind all that can fail in a step.
        pending: what the step under way puts in the place of it; keys that it leaves out stay as they are.
        spare: what the last step replaced, or did not come to replace: memory in which the next one may prepare
            `pending`, so that a large state needs no new pages in each step. For a step its contents mean nothing.
        replaced: keys whose spare is what the last commit replaced.
    """

    residual: Residual | None = None
    current: dict[Key, torch.Tensor] = field(default_factory=dict)
    pending: dict[Key, torch.Tensor] = field(default_factory=dict)
    spare: dict[Key, torch.Tensor] = field(default_factory=dict)
    replaced: tuple[Key, ...] = ()

    def commit(self) -> None:
        """The step succeeded on all ranks."""
        if self.residual is not None:
            self.residual.commit()
        self.replaced = tuple(key for key in self.pending if key in self.current)
        self.spare.update({key: self.current[key] for key in self.replaced})
        self.current.update(self.pending)
        self.pending.clear()

    def replace(self, key: Key, tensor: torch.Tensor) -> None:
        """Replace what is kept after a commit, as a part of it."""
        self.spare[key], self.current[key] = self.current[key], tensor
        self.replaced = (*self.replaced, key)

    @property
    def can_revert(self) -> bool:
        """Whether there is something that revert() would bring back."""
        return bool(self.replaced) or (self.residual is not None and self.residual.can_revert)

    def revert(self) -> None:
        """Take the last commit back, unless keep() was called since: its step has failed, or nobody used its result."""
        if self.residual is not None:
            self.residual.revert()
        for key in self.replaced:
            if key in self.current:  # else it was forgotten since
                self.current[key], self.spare[key] = self.spare[key], self.current[key]
        self.replaced = ()

    def keep(self, kind: str = "") -> None:
        """The last commit stands, or what it did to one kind: another step begins, or something else was loaded."""
        if self.residual is not None and not kind:
            self.residual.can_revert = False
        self.replaced = tuple(key for key in self.replaced if kind and key[0] != kind)

    def discard(self) -> None:
        """A gradient was not finite: the step is not to count."""
        if self.residual is not None:
            self.residual.discard()
        self.spare.update(self.pending)
        self.pending.clear()


class States:
    """All that a rank remembers, keyed by parameter name, so that it outlives a change of buckets.

    Memory: 8 bytes an element of the buckets with error feedback, and what compressors keep.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, torch.Tensor] = {}  # residuals of a checkpoint, or of parameters in no bucket
        self._unclaimed: dict[Key, torch.Tensor] = {}  # the same of compressors' states
        self._places: dict[str, tuple[Residual, int, int]] = {}
        self._buckets: dict[tuple[str, ...], BucketState] = {}

    def bind(
        self,
        layout: Layout,
        device: torch.device = _CPU,
        error_feedback: bool = True,
        own: Mapping[Key, torch.Tensor] | None = None,
    ) -> BucketState:
        """Return what a bucket remembers: of its parameters' earlier buckets, or of a checkpoint, or nothing yet.

        Args:
            device: where the bucket is compressed.
            error_feedback: whether there is a residual.
            own: what the compressor keeps, to begin with; what is remembered in the same shape takes its place. What
                has no place in it waits for a compressor that has one.
        """
        state = BucketState(self._bind_residual(layout, device) if error_feedback else None)
        known = {**self._unclaimed, **dict(self._own())}
        for key, initial in (own or {}).items():
            state.current[key] = _fitting(key, known.get(key), initial)
        for other in self._buckets.values():
            for key in other.replaced:
                if key in state.current and state.current[key] is other.current.get(key):
                    state.spare[key], state.replaced = other.spare[key], (*state.replaced, key)
        self._buckets = {n: b for n, b in self._buckets.items() if not set(n) & set(layout.names)}
        self._buckets[layout.names] = state
        remembered = dict(self._own())
        self._unclaimed = {k: t for k, t in known.items() if k not in remembered}
        return state

    def has_residual(self, names: Iterable[str]) -> bool:
        """Whether there is a residual of any of these parameters, which a bucket would have to send."""
        return any(name in self._places or name in self._waiting for name in names)

    def forget(self, names: Iterable[str]) -> None:
        """Drop the residuals of these parameters, before their bucket is bound again."""
        for name in names:
            self._places.pop(name, None)
            self._waiting.pop(name, None)

    def forget_own(self, names: Sequence[str], keep: Collection[Key]) -> bool:
        """Drop what compressors keep for these parameters but some keys, before their bucket is bound again.

        Return whether there was anything.
        """
        holders = [self._unclaimed, *(bucket.current for bucket in self._buckets.values())]
        found = [(held, key) for held in holders for key in held if key[1] in names and key not in keep]
        for held, key in found:
            del held[key]
        return bool(found)

    def forget_kind(self, kind: str) -> None:
        """Drop what a checkpoint has brought of a kind, and no bucket has taken."""
        self._unclaimed = {key: tensor for key, tensor in self._unclaimed.items() if key[0] != kind}

    def _bind_residual(self, layout: Layout, device: torch.device) -> Residual:
        """Give the parameters of a bucket their place in one flat buffer, with what is remembered of them."""
        earlier = [self._places[name][0] for name in layout.names if name in self._places]
        for held in earlier:
            held.end()
        residual, reverts = Residual.zeros(layout.numel, device), any(held.can_revert for held in earlier)
        start = 0
        for name, length in zip(layout.names, layout.segments, strict=True):
            kept, part = self._read(name), slice(start, start + length)
            if kept is not None:
                residual.begin(part, kept)
            if reverts:
                residual.begin_before(part, self._before(name))
            self._waiting.pop(name, None)
            self._places[name] = (residual, start, start + length)
            start += length
        return residual

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of every residual, (numel,) fp32, on the CPU wherever it lies, by parameter name."""
        names = sorted({**self._waiting, **self._places})
        return {name: residual.to(_CPU, copy=True) for name in names if (residual := self._read(name)) is not None}

    def own_state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return a copy of what compressors keep, on the CPU, by kind and parameter name."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for (kind, name), tensor in sorted({**self._unclaimed, **dict(self._own())}.items(), key=lambda item: item[0]):
            found.setdefault(kind, {})[name] = tensor.to(_CPU, copy=True)
        return found

    def load_state_dict(
        self,
        residuals: Mapping[str, torch.Tensor],
        numels: Mapping[str, int],
        own: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Replace all that is remembered. Parameters whose residual is missing start again from zero.

        Args:
            residuals: as state_dict() gives them.
            numels: numel of each parameter that there is.
            own: as own_state_dict() gives it; what is missing stays as it is.

        Raises:
            ValueError: something is of an unknown parameter, a residual has another numel, or a tensor is not finite;
                nothing has changed then.

        Warns of what a compressor keeps in another shape now: it starts anew.
        """
        own = own or {}
        for kind, name in (*(("residual", n) for n in residuals), *((k, n) for k in own for n in own[k])):
            if name not in numels:
                raise ValueError(
                    f"a {kind} of parameter {name!r} was saved, and there is no such parameter: name "
                    "parameters as when it was saved, or load no state of a compression to start from zero"
                )
            if kind in own and not bool(torch.isfinite(own[kind][name]).all()):
                raise ValueError(f"the {kind} of {name!r} is not finite")
        for name, residual in residuals.items():
            if residual.numel() != numels[name]:
                raise ValueError(f"the residual of {name!r} has {residual.numel()} elements instead of {numels[name]}")
            if not bool(torch.isfinite(residual).all()):
                raise ValueError(f"the residual of {name!r} is not finite")
        self._waiting = {}
        self.keep_commits()
        for name in numels:
            value = residuals.get(name)
            if name in self._places:
                place, start, stop = self._places[name]
                place.settle()[start:stop] = 0 if value is None else value.reshape(-1)
            elif value is not None:
                self._waiting[name] = value.detach().reshape(-1).to(_CPU, torch.float32, copy=True)
        self._load_own({(kind, name): tensor for kind, tensors in own.items() for name, tensor in tensors.items()})

    def _load_own(self, loaded: Mapping[Key, torch.Tensor]) -> None:
        """Each where a bucket keeps it in that shape; the rest waits for one that does."""
        self._unclaimed = {key: tensor.detach().to(_CPU, copy=True) for key, tensor in loaded.items()}
        for state in self._buckets.values():
            for key, kept in list(state.current.items()):
                state.current[key] = _fitting(key, self._unclaimed.pop(key, None), kept)

    def keep(self) -> Callable[[], None]:
        """Copy what is remembered where it lies; return what brings it back to the bit, as often as it is called."""
        found = {name: self._read(name) for name in (*self._waiting, *self._places)}
        kept = {name: residual.clone() for name, residual in found.items() if residual is not None}
        own = {key: tensor.clone() for key, tensor in {**self._unclaimed, **dict(self._own())}.items()}

        def restore() -> None:
            self.keep_commits()
            # By name: steps may have given parameters other buckets, or a bucket another compressor.
            for name, (residual, start, stop) in self._places.items():
                residual.settle()[start:stop] = kept.get(name, 0.0)  # there may have been none
            for state in self._buckets.values():
                for key, tensor in state.current.items():
                    if key in own and own[key].shape == tensor.shape:
                        # A copy: a later step may write to what it replaces.
                        state.current[key] = own[key].to(tensor.device, tensor.dtype, copy=True)

        return restore

    def scale(self, factor: float) -> None:
        """Multiply every residual, and what else is in units of the gradient: when the loss scale of mixed precision
        changes by `factor`, for instance.
        """
        for waiting in self._waiting.values():
            waiting.mul_(factor)
        for residual, start, stop in self._places.values():
            residual.settle()[start:stop].mul_(factor)
        for own in (self._unclaimed, *(state.current for state in self._buckets.values())):
            own.update({key: factor * tensor for key, tensor in own.items() if key[0].startswith(GRADIENT_UNITS)})

    def keep_commits(self) -> None:
        """The last commits stand, of all buckets."""
        for state in self._buckets.values():
            state.keep()

    def _own(self) -> Iterator[tuple[Key, torch.Tensor]]:
        for state in self._buckets.values():
            yield from state.current.items()

    def _before(self, name: str) -> torch.Tensor | float:
        """Return what a step that is taken back would bring, of a parameter; zero where nothing is remembered."""
        if name in self._places:
            residual, start, stop = self._places[name]
            return residual.before(slice(start, stop))
        return self._waiting.get(name, 0.0)

    def _read(self, name: str) -> torch.Tensor | None:
        if name in self._places:
            residual, start, stop = self._places[name]
            return residual.kept.read(slice(start, stop))
        return self._waiting.get(name)


def by_parameter(kind: str, layout: Layout, flat: torch.Tensor) -> dict[Key, torch.Tensor]:
    """Return the part of each parameter of a bucket in `flat` (numel,), as views, by the keys of this kind."""
    parts = torch.split(flat, list(layout.segments))
    return {(kind, name): part for name, part in zip(layout.names, parts, strict=True)}


def flat_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the tensor (numel,) that holds these flat tensors of one dtype one behind the other; None where they do
    not lie so in one piece of memory.
    """
    place = 0
    for tensor in tensors:
        same = tensor.untyped_storage().data_ptr() == tensors[0].untyped_storage().data_ptr()
        if tensor.numel() and not (same and tensor.storage_offset() == tensors[0].storage_offset() + place):
            return None
        place += tensor.numel()
    return tensors[0].as_strided((place,), (1,)) if tensors else None


def _fitting(key: Key, kept: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    """Return what is remembered where it has the shape that is wanted."""
    if kept is None:
        return otherwise
    if kept.shape != otherwise.shape:
        warn_caller(
            f"the {key[0]} of parameter {key[1]!r} is remembered with shape {tuple(kept.shape)} and starts anew with "
            f"{tuple(otherwise.shape)}: the compression has other settings"
        )
        return otherwise
    return kept.to(otherwise.device, otherwise.dtype)
