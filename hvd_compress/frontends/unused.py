"""Notices that nobody has used the result of an exchange: what compression remembers of it is to be forgotten, too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch.utils.weak import TensorWeakRef

WATCHED = 4
"""Parameters, evenly spread, that are looked at."""
SAMPLED, COMPARED = 64, 1 << 16
"""Elements of each, evenly spread, by which it is seen to move; and of its gradient, by which that is known again."""
ALIKE = 1e-2
"""Of a gradient that was scaled, as by clipping: the part of it that its exchange has not left, at most."""

log = logging.getLogger("hvd_compress")


@dataclass(frozen=True)
class _Result:
    """The gradient of a parameter as an exchange has left it, and the parameter then.

    Attributes:
        sample: some elements of the parameter.
        kept: the first ones of the gradient, where they are to be compared.
    """

    gradient: TensorWeakRef
    version: int
    sample: torch.Tensor
    kept: torch.Tensor | None

    @classmethod
    def of(cls, sample: torch.Tensor, gradient: torch.Tensor, compares: bool) -> _Result:
        kept = _first(gradient).clone() if compares else None
        return cls(TensorWeakRef(gradient), gradient._version, sample, kept)

    def may_be_in(self, gradient: torch.Tensor | None) -> bool:
        """Whether there may be something of it in what is the parameter's gradient now."""
        if gradient is None or hasattr(gradient, "_local_tensor"):  # what a shard holds is not alike on all ranks
            return gradient is not None
        as_it_was = self.gradient() is gradient and gradient._version == self.version
        return as_it_was or bool((gradient._values() if gradient.is_sparse else gradient).any())

    def is_alike(self, gradient: torch.Tensor | None) -> bool:
        """Whether a gradient is the result times some number, or nothing is known of it."""
        if self.kept is None or gradient is None:
            return True
        own, other = self.kept.flatten().double(), _first(gradient).flatten().double()
        if own.shape != other.shape:
            return False
        lost = other.norm().square() - other.dot(own).square() / own.norm().square().clamp_min(1e-300)
        return bool(lost <= ALIKE**2 * other.norm().square())


class UnusedResult:
    """Notices, when the next exchange begins, whether the result of the last one was dropped.

    It was where no parameter has moved since, and the gradients that held it were gone or zero when the next ones came:
    a program leaves a step out whose gradients it does not trust, or wanted other gradients of a backward pass. It was
    not where gradients accumulate on it. All ranks' programs do the same, or their replicas would differ: so each rank
    sees it by itself, and nothing that is launched depends on it.

    To take a result for unused that was used would lose feedback in silence. So nothing is noticed before an optimizer
    was seen to step by what an exchange has left, perhaps clipped; and nothing any more where parameters have moved
    otherwise, where a step is captured, which is not seen when it is repeated, or where after a dropped result a step
    has gradients that no exchange has left, as of programs that keep several and combine them.

    Attributes:
        parameters: by name, in an order that is the same on all ranks; sharded ones as torch's DTensor.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], drop: Callable[[], None]) -> None:
        """Nothing was exchanged yet.

        Args:
            parameters: as the attribute.
            drop: forgets what the last exchange has left; called before anything of the next one has left.
        """
        names = list(parameters)
        last = min(WATCHED, len(names)) - 1
        self.parameters, self._drop = parameters, drop
        is_sharded = any(hasattr(parameter, "_local_tensor") for parameter in parameters.values())
        self._version = _local_version if is_sharded else attrgetter("_version")
        self._watched = [names[place * (len(names) - 1) // max(1, last)] for place in range(last + 1)]
        self._results: dict[str, _Result] = {}  # of the last exchange, until the next one begins
        self._samples: dict[str, tuple[int, torch.Tensor]] = {}
        self._written = 0
        self._notices: bool | None = None  # None before the first step
        self._has_come = self._is_gone = self._has_stepped = self._has_dropped = False

    @property
    def watched(self) -> list[torch.Tensor]:
        """Parameters whose gradients are looked at: comes() is to be called before the first of them is added to."""
        return [self.parameters[name] for name in self._watched]

    @property
    def awaits_step(self) -> bool:
        """Whether take_step() is to be called after the coming step of an optimizer of these parameters."""
        return bool(self._results) and (self._has_dropped or not self._has_stepped)

    def exchanged(self) -> None:
        """Results lie in the parameters' gradients, and something is remembered of what they were made of."""
        if self._notices is False:
            return
        self._results = self._found(self._watched) or self._found(self.parameters)
        self._written = self._writes()
        self._has_come = self._is_gone = self._has_stepped = False

    def take_step(self, is_captured: bool) -> None:
        """An optimizer has taken a step. `is_captured`: in a graph, by which it will take others that are not seen."""
        self._has_stepped = True
        if is_captured:
            self._stop("a step was captured in a graph")
        elif not all(result.is_alike(self.parameters[name].grad) for name, result in self._results.items()):
            self._stop("a step has other gradients than an exchange has left")
        elif self._notices is None and self._results:
            self._notices = True
        self._has_dropped = False

    def comes(self) -> None:
        """The next gradients come, and none was added to those of the last exchange yet. Later calls change nothing."""
        if self._results and not self._has_come:
            self._has_come = True
            if not self._has_stepped and self._notices:
                found = self._results.items()
                self._is_gone = not any(result.may_be_in(self.parameters[name].grad) for name, result in found)

    def begins(self) -> None:
        """The next exchange begins: nothing of it has left. Later calls change nothing."""
        self.comes()  # where none that is watched has come
        results, self._results = self._results, {}
        if not results or self._has_stepped:
            return
        if self._writes() != self._written or (self._is_gone and self._have_moved(results)):
            self._stop("parameters have moved without a step of an optimizer")
        elif self._is_gone:
            self._has_dropped = True
            self._drop()

    def _have_moved(self, results: Mapping[str, _Result]) -> bool:
        return not all(torch.equal(result.sample, self._sampled(name)) for name, result in results.items())

    def _sampled(self, name: str) -> torch.Tensor:
        """Return some elements of a parameter, as a view: made once, as long as it lies there."""
        parameter = self.parameters[name]
        place = getattr(parameter, "_local_tensor", parameter).data_ptr()
        known = self._samples.get(name)
        if known is None or known[0] != place:
            known = self._samples[name] = place, _sample(parameter)
        return known[1]

    def _stop(self, why: str) -> None:
        if self._notices is not False:
            log.info("hvd_compress: %s: results that nobody uses are not noticed any more, without drop_step()", why)
        self._notices, self._results, self._samples = False, {}, {}

    def _found(self, names: Iterable[str]) -> dict[str, _Result]:
        found = {name: self.parameters[name] for name in names}
        compares = self._notices is None or self._has_dropped
        given = {name: each.grad for name, each in found.items() if each.grad is not None}
        return {name: _Result.of(self._sampled(name).clone(), each, compares) for name, each in given.items()}

    def _writes(self) -> int:
        """Return how often torch has seen parameters be written to."""
        return sum(map(self._version, self.parameters.values()))


def _local_version(parameter: torch.Tensor) -> int:
    return int(getattr(parameter, "_local_tensor", parameter)._version)


@torch.no_grad()
def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Return some elements (n,) of a parameter as a view, of a sharded one of this rank's part."""
    whole = getattr(parameter, "_local_tensor", parameter).detach()
    flat = whole.as_strided((whole.untyped_storage().nbytes() // whole.element_size(),), (1,), 0)
    flat = flat[whole.storage_offset() :][: whole.numel()]
    return flat[:: max(1, whole.numel() // SAMPLED)]


@torch.no_grad()
def _first(gradient: torch.Tensor) -> torch.Tensor:
    """Return the first elements of a gradient, of a sharded one of this rank's part, as they lie in its first rows."""
    own = getattr(gradient, "_local_tensor", gradient).detach()
    own = own.coalesce().values() if own.is_sparse else own
    own = torch.view_as_real(own) if own.is_complex() else own
    rows = own.reshape(1) if own.dim() == 0 else own
    return rows[: max(1, COMPARED * len(rows) // max(1, rows.numel()))].reshape(-1)[:COMPARED]
