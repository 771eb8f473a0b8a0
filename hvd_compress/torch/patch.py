"""For programs that keep `import horovod.torch as hvd`: put our drop-in into Horovod's namespace."""

from __future__ import annotations

import horovod.torch

from hvd_compress.torch.compression import Compression
from hvd_compress.torch.optimizer import DistributedOptimizer, broadcast_optimizer_state
from hvd_compress.torch.parameters import broadcast_parameters

_OURS = {
    "Compression": Compression,
    "DistributedOptimizer": DistributedOptimizer,
    "broadcast_optimizer_state": broadcast_optimizer_state,
    "broadcast_parameters": broadcast_parameters,
}


def patch_horovod() -> None:
    """Replace `DistributedOptimizer`, `Compression` and the broadcasts of parameters and optimizers in horovod.torch.

    Call it before `from horovod.torch import ...`, and before hvd.init() so that MPI's algorithms can be chosen. No
    file is changed, stock compressions work as before, and calling it twice does no harm.
    """
    for name, value in _OURS.items():
        setattr(horovod.torch, name, value)
