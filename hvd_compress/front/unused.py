"""Notices that nobody has used the result of an exchange: what compression remembers of it is to be forgotten, too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.utils.weak import TensorWeakRef

from hvd_compress.session.replicas import bit_sum

WATCHED = 4
"""Parameters, evenly spread, whose gradients are looked at."""

log = logging.getLogger("hvd_compress")


@dataclass(frozen=True)
class _Result:
    """The gradient of a parameter as an exchange has left it."""

    gradient: TensorWeakRef
    version: int

    @classmethod
    def of(cls, gradient: torch.Tensor) -> _Result:
        return cls(TensorWeakRef(gradient), gradient._version)

    def is_in(self, gradient: torch.Tensor | None) -> bool:
        """Whether there may be something of it in what is a parameter's gradient now."""
        if gradient is None:
            return False
        as_it_was = self.gradient() is gradient and gradient._version == self.version
        return as_it_was or bool(getattr(gradient, "_local_tensor", gradient).any())


class UnusedResult:
    """Notices, when the next gradients come, whether the result of the last exchange was dropped.

    It was where no parameter has moved since, and the gradients that held it are gone or zero: a program leaves a step
    out whose gradients it does not trust, or wanted other gradients of a backward pass. It was not where gradients
    accumulate on it. All ranks' programs do the same, or their replicas would differ: so each rank sees it by itself,
    and nothing that is launched depends on it.

    A parameter has moved where an optimizer's step was seen, or torch counts a write to it. Whether one of them shows
    the steps of this program is found by its first step; where none does, and where a step's gradients are others than
    an exchange has left, as of programs that keep copies of several and combine them, nothing is noticed any more.

    Attributes:
        parameters: by name, in an order that is the same on all ranks.
        watched: names of those whose gradients are looked at.
        awaits_step: whether take_step() is to be called after the coming step of an optimizer of these parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        gradient: Callable[[str], torch.Tensor | None],
        writes: Callable[[], int],
        drop: Callable[[], None],
    ) -> None:
        """Nothing was exchanged yet.

        Args:
            parameters: as the attribute.
            gradient: gives that of a parameter.
            writes: counts those to all parameters.
            drop: forgets what the last exchange has left; called before any gradient of the next one has left.
        """
        names = list(parameters)
        last = min(WATCHED, len(names)) - 1
        self.parameters, self._gradient, self._writes, self._drop = parameters, gradient, writes, drop
        self.watched = [names[place * (len(names) - 1) // max(1, last)] for place in range(last + 1)]
        self._results: dict[str, _Result] = {}  # of the last exchange, until the next gradients come
        self._written = 0
        self._sums: list[torch.Tensor] = []  # of parameters, until a step was seen
        self._sees_steps: bool | None = None  # None before the first
        self._has_stepped = self._has_dropped = False

    @property
    def awaits_step(self) -> bool:
        return bool(self._results) and (self._has_dropped or not self._has_stepped)

    def exchanged(self) -> None:
        """Results lie in the parameters' gradients, and something is remembered of what they were made of."""
        if self._sees_steps is False:
            return
        self._results = self._found(self.watched) or self._found(self.parameters)
        self._written, self._has_stepped = self._writes(), False
        self._sums = self._summed() if self._sees_steps is None else []

    def take_step(self, is_captured: bool) -> None:
        """An optimizer has taken a step. `is_captured`: in a graph, by which it will take others that are not seen."""
        self._has_stepped = True
        if is_captured:
            self._sees_steps = False
        elif self._sees_steps is None:
            self._sees_steps = True
        found = {name: self._gradient(name) for name in self._results}
        others = [
            name for name, each in found.items() if each is not None and self._results[name].gradient() is not each
        ]
        if self._has_dropped and others:
            self._sees_steps, self._results = False, {}
            log.info(
                "hvd_compress: the gradient of %r in a step is another than an exchange has left, after one whose "
                "result was zeroed: results are taken to be combined, and none is taken to be dropped without a call",
                others[0],
            )
        self._has_dropped = False

    def comes(self) -> None:
        """The next gradients come, and none was added to those of the last exchange yet."""
        results, self._results = self._results, {}
        if not results or self._has_moved():
            return
        if not any(result.is_in(self._gradient(name)) for name, result in results.items()):
            self._has_dropped = True
            self._drop()

    def _found(self, names: Iterable[str]) -> dict[str, _Result]:
        found = {name: self._gradient(name) for name in names}
        return {name: _Result.of(each) for name, each in found.items() if each is not None}

    def _has_moved(self) -> bool:
        if self._has_stepped:
            return True
        if self._writes() != self._written:
            self._sees_steps = True
            return True
        if self._sees_steps is None and not all(map(torch.equal, self._sums, self._summed())):
            self._sees_steps = False
            return True
        return False

    def _summed(self) -> list[torch.Tensor]:
        return [bit_sum(parameter) for parameter in self.parameters.values()]
