"""Horovod's own distributed optimizers, of which one may still be alive when another optimizer takes its parameters."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NoReturn

from hvd_compress.frontends.horovod.uncompressed import UncompressedOptimizer
from hvd_compress.frontends.optimizer.watchers import register, replaced


def is_stock(optimizer: Any) -> bool:
    """Tell as Horovod itself does: it copies its methods into a new class. On our runtime: UncompressedOptimizer."""
    return isinstance(optimizer, UncompressedOptimizer) or type(optimizer).__module__ == "horovod.torch.optimizer"


def watch_stock(optimizer: Any) -> None:
    """Have it retire when another optimizer is wrapped over its parameters."""
    optimizer._hvd_compress_watcher = watcher = _Stock(optimizer)  # lives as long as the optimizer
    register(watcher, (parameter for group in optimizer.param_groups for parameter in group["params"]))


class _Stock:
    """What retires one of Horovod's optimizers, whose hooks cannot be removed."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)

    @property
    def is_retired(self) -> bool:
        """Never: Horovod's own goes on."""
        return False

    def require_idle(self) -> None:
        """Horovod alone knows."""

    def retire(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.set_backward_passes_per_step(sys.maxsize)  # its hooks count down to an exchange that never comes
            optimizer.step = _refuse


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise replaced("step()")
