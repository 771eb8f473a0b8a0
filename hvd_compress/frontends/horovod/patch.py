"""For programs that keep `import horovod.torch as hvd`: put our drop-in into Horovod's namespace."""

from __future__ import annotations

import sys

import horovod.torch

from hvd_compress.frontends.horovod.background import init
from hvd_compress.frontends.horovod.broadcasts import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    synchronize,
)
from hvd_compress.frontends.horovod.compression import Compression
from hvd_compress.frontends.horovod.distributed import DistributedOptimizer
from hvd_compress.frontends.horovod.optimizer_state import broadcast_optimizer_state
from hvd_compress.frontends.horovod.parameters import broadcast_parameters

_OURS = {
    "Compression": Compression,
    "DistributedOptimizer": DistributedOptimizer,
    "broadcast": broadcast,
    "broadcast_": broadcast_,
    "broadcast_async": broadcast_async,
    "broadcast_async_": broadcast_async_,
    "broadcast_optimizer_state": broadcast_optimizer_state,
    "broadcast_parameters": broadcast_parameters,
    "init": init,
    "synchronize": synchronize,
}
_HOROVODS = {name: getattr(horovod.torch, name) for name in _OURS}


def patch_horovod() -> None:
    """Replace `DistributedOptimizer`, `Compression`, broadcasts, `synchronize`, `init` in horovod.torch and below it.

    Call it before `from horovod.torch import ...`, and before hvd.init() so that MPI's algorithms can be chosen. No
    file is changed, stock compressions work as before, and calling it twice does no harm.
    """
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith("horovod.torch.")]
    for name, value in _OURS.items():
        for module in modules:
            if vars(module).get(name) is _HOROVODS[name]:
                setattr(module, name, value)
