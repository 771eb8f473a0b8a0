"""For programs that keep `import horovod.torch as hvd`: put our drop-in into Horovod's namespace."""

from __future__ import annotations

import horovod.torch

from hvd_compress.torch.broadcasts import broadcast, broadcast_, broadcast_async, broadcast_async_, synchronize
from hvd_compress.torch.compression import Compression
from hvd_compress.torch.optimizer import DistributedOptimizer
from hvd_compress.torch.optimizer_state import broadcast_optimizer_state
from hvd_compress.torch.parameters import broadcast_parameters

_OURS = {
    "Compression": Compression,
    "DistributedOptimizer": DistributedOptimizer,
    "broadcast": broadcast,
    "broadcast_": broadcast_,
    "broadcast_async": broadcast_async,
    "broadcast_async_": broadcast_async_,
    "broadcast_optimizer_state": broadcast_optimizer_state,
    "broadcast_parameters": broadcast_parameters,
    "synchronize": synchronize,
}


def patch_horovod() -> None:
    """Replace `DistributedOptimizer`, `Compression`, the broadcasts of tensors and `synchronize` in horovod.torch.

    Call it before `from horovod.torch import ...`, and before hvd.init() so that MPI's algorithms can be chosen. No
    file is changed, stock compressions work as before, and calling it twice does no harm.
    """
    for name, value in _OURS.items():
        setattr(horovod.torch, name, value)
