"""An optimizer has taken a step: one hook of torch on all of them tells those who wait for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Watcher(Protocol):
    """Waits for steps of optimizers of some parameters.

    Attributes:
        parameters: by name. Others take their place in a mapping of their own.
        awaits_step: whether it wants to know of the next step; it learns of one that is captured in any case.
    """

    parameters: Mapping[str, torch.Tensor]

    @property
    def awaits_step(self) -> bool: ...

    def take_step(self, is_captured: bool) -> None:
        """An optimizer has taken a step. `is_captured`: in a graph, by which it will take others that nobody sees."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_trained: weakref.WeakKeyDictionary[
    torch.optim.Optimizer, tuple[int, weakref.WeakKeyDictionary[Watcher, dict[int, bool]]]
] = weakref.WeakKeyDictionary()
"""By optimizer: how many parameters it has, and of each watcher whether it trains some of that one's, by mapping."""
_lock = threading.Lock()  # ranks may be threads
_hooked = False


def tell_of_steps(watcher: Watcher) -> None:
    """Call take_step() of a watcher where it waits for one, after each step of an optimizer of its parameters."""
    global _hooked
    with _lock:
        if not _hooked:
            register_optimizer_step_post_hook(_tell)
            _hooked = True
        _watchers.add(watcher)


def _tell(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return  # a step that is compiled is not looked at
    with _lock:
        is_captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        told = [each for each in _watchers if (each.awaits_step or is_captured) and _trains(optimizer, each)]
    for watcher in told:
        watcher.take_step(is_captured)


def _trains(optimizer: torch.optim.Optimizer, watcher: Watcher) -> bool:
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    known, found = _trained.get(optimizer, (0, weakref.WeakKeyDictionary()))
    if known != count:
        found = weakref.WeakKeyDictionary()
    of_watcher = found.setdefault(watcher, {})
    which = id(watcher.parameters)
    if which not in of_watcher:
        mine = list(watcher.parameters.values())
        ids, places = {id(parameter) for parameter in mine}, {_place(parameter) for parameter in mine} - {0}
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        of_watcher[which] = any(id(parameter) in ids or _place(parameter) in places for parameter in own)
        _trained[optimizer] = count, found
    return of_watcher[which]


def _place(parameter: torch.Tensor) -> int:
    """Return where a parameter lies, of a sharded one this rank's part; 0 where there is nothing."""
    return int(getattr(parameter, "_local_tensor", parameter).data_ptr())
