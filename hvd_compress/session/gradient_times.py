"""When each gradient of a step became ready: hooks on parameters, and one on the beginning of a backward pass."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import torch

from hvd_compress.session.clocks import Clock, Moment


@dataclass(frozen=True)
class StepTimes:
    """One step, in seconds.

    Attributes:
        forward_s: from the end of the step before to the beginning of the backward pass; None where there is none.
        ready_s: by parameter, from the beginning of the backward pass until its gradient was final, in this order.
    """

    forward_s: float | None
    ready_s: Mapping[str, float]


@dataclass
class _Marks:
    """The moments of a step: of each gradient, also how many backward passes had begun."""

    begun: Moment | None = None
    passes: list[Moment] = field(default_factory=list)
    ready: dict[str, tuple[int, Moment]] = field(default_factory=dict)


class Recorder:
    """Watches the gradients of a training until it is closed, and keeps the last `steps` steps.

    - A gradient is final when it was last written in a step: with several backward passes in one, in the last that
      reached its parameter.
    - The backward pass of a step begins with the call of backward() that wrote the first of these gradients.
    - A parameter that is shared has one gradient, ready when all of its uses are summed.
    - Gradients that are sparse travel by their rows: `sparse` names them.

    It launches nothing and makes nobody wait: on a GPU it records an event for each gradient.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], clock: Clock, steps: int) -> None:
        """Begin to watch. `parameters`: those that are trained, by name."""
        self._clock, self._marks = clock, _Marks()
        self._steps: deque[_Marks] = deque(maxlen=steps)
        self.sparse: set[str] = set()
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, name))  # type: ignore[no-untyped-call]
            for name, parameter in parameters.items()
        ]
        self._begin = self._pass_begins  # one object, so that it can be found again
        _watch(self._begin)

    def end_step(self, exchanged: bool = False) -> None:
        """A step is over. The next one begins now if gradients were `exchanged`, else with the last gradient."""
        marks = self._marks
        self._steps.append(marks)
        last = next(reversed(marks.ready.values()))[1] if marks.ready else marks.begun
        self._marks = _Marks(self._clock.now() if exchanged else last)

    def close(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        _unwatch(self._begin)

    def times(self) -> list[StepTimes]:
        """Return the steps in which there were gradients. Waits for a GPU."""
        self._clock.settle()
        return [self._times(marks) for marks in self._steps if marks.ready]

    def _ready(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            self.sparse.add(name)
        marks = self._marks
        marks.ready.pop(name, None)  # so that the order is that of the last writes
        marks.ready[name] = (len(marks.passes), self._clock.now())

    def _pass_begins(self) -> None:
        self._marks.passes.append(self._clock.now())

    def _times(self, marks: _Marks) -> StepTimes:
        passes, first = next(iter(marks.ready.values()))
        start = marks.passes[passes - 1] if passes else first
        seconds = self._clock.seconds
        forward_s = None if marks.begun is None else seconds(marks.begun, start)
        return StepTimes(forward_s, {name: seconds(start, moment) for name, (_, moment) in marks.ready.items()})


_lock = threading.Lock()
_watchers: list[Callable[[], None]] = []
_current: Callable[..., Any] | None = None
"""The function that tells watchers; None where nobody watches. It then calls `_before`, whose place it has taken."""
_before: Callable[..., Any] = torch.autograd.backward


def _watch(watcher: Callable[[], None]) -> None:
    """Have torch.autograd.backward(), which every tensor's backward() calls, tell a watcher first."""
    global _current, _before
    with _lock:
        if _current is None or torch.autograd.backward is not _current:
            _before = torch.autograd.backward
            torch.autograd.backward = _current = _telling(_before)
        _watchers.append(watcher)


def _unwatch(watcher: Callable[[], None]) -> None:
    """Undo it: what was there before comes back with the last watcher, unless somebody has replaced or wrapped ours."""
    global _current
    with _lock:
        if watcher in _watchers:
            _watchers.remove(watcher)
        if not _watchers and _current is not None:
            if torch.autograd.backward is _current:
                torch.autograd.backward = _before
            _current = None


def _telling(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `before`, and tells watchers while it is the current one.

    Another library may have wrapped an earlier one, which then stays within `before` for ever: it only passes on.
    """

    @wraps(before)
    def backward(*arguments: Any, **named: Any) -> Any:
        if backward is _current:
            for watcher in tuple(_watchers):
                watcher()
        return before(*arguments, **named)

    return backward
