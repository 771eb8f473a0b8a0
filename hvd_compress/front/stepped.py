"""An optimizer has taken a step: one hook of torch on all of them tells the checks of replicas that wait for it."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hvd_compress.session.replicas import ReplicaCheck

_checks: weakref.WeakSet[ReplicaCheck] = weakref.WeakSet()
_lock = threading.Lock()  # ranks may be threads
_hooked = False


def tell_of_steps(check: ReplicaCheck) -> None:
    """Call take_step() of a check where it waits for one, after each step of an optimizer of its parameters."""
    global _hooked
    with _lock:
        if not _hooked:
            register_optimizer_step_post_hook(_tell)
            _hooked = True
        _checks.add(check)


def _tell(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return  # a step that is compiled or captured is not looked at
    with _lock:
        waiting = [check for check in _checks if check.awaits_step]
    for check in waiting:
        mine = {_place(parameter) for parameter in check.parameters.values()} - {0}
        if any(_place(parameter) in mine for group in optimizer.param_groups for parameter in group["params"]):
            check.take_step()


def _place(parameter: torch.Tensor) -> int:
    """Return where a parameter lies, of a sharded one this rank's part; 0 where there is nothing."""
    return int(getattr(parameter, "_local_tensor", parameter).data_ptr())
