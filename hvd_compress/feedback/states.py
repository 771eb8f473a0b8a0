"""What buckets remember between steps: residuals, and what compressors keep in addition, by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.feedback.residual import Residual
from hvd_compress.warned import warn_caller

_CPU = torch.device("cpu")

Key = tuple[str, str]
"""The kind of a compressor's own state, such as "powersgd.q", and the parameter that it belongs to."""

GRADIENT_UNITS = "gradient:"
"""A kind that begins so is in units of the gradient, and follows a loss scale as residuals do."""

RESULT_SUM = f"{GRADIENT_UNITS}result.sum"
"""The kind of a sum of results over steps, (numel,) fp32, which a policy compares: kept beside compressors' states."""


@dataclass
class BucketState:
    """What one bucket remembers between steps. Every part of a step is committed, or none.

    Attributes:
        residual: None where the compressor has no error feedback.
        current: what the compressor keeps in addition, as the last committed step left it; never written in place, but
            for sums of results, after all that can fail in a step.
        pending: what the step under way replaces it by; keys that it leaves out stay as they are.
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
