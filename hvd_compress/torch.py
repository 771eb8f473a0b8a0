"""Everything of horovod.torch, with a DistributedOptimizer that compresses: `import hvd_compress.torch as hvd`.

Where Horovod is not installed, a runtime of this package stands for it (docs/from-horovod.md).

What compresses a momentum (Compression.momentum, Compression.demo) has its own optimizers in hvd_compress.optim:

    optimizer = OneBitAdam(model.parameters(), lr=1e-3, warmup_steps=1000)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=optimizer.compression())
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from hvd_compress import guests as _guests
from hvd_compress.engines.mpi_environment import prepare as _prepare
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
from hvd_compress.frontends.horovod.runtime_selection import hvd as _runtime
from hvd_compress.frontends.known import of
from hvd_compress.session.report import StepReport

_prepare()  # before hvd.init(): MPI reads it when it starts

if _TYPE_CHECKING:
    from hvd_compress.papers.accordion.batch_size import BatchSizeSchedule
    from hvd_compress.runtime.api import *  # type: ignore[assignment]  # noqa: F403  # its Compression is the base of ours

__all__ = [
    "BatchSizeSchedule",
    "Compression",
    "DistributedOptimizer",
    "StepReport",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "of",
    "synchronize",
]
if not hasattr(_runtime, "SyncBatchNorm"):
    from hvd_compress.frontends.horovod.sync_batch_norm import SyncBatchNorm

    __all__ += ["SyncBatchNorm"]
_others = [name for name in getattr(_runtime, "__all__", dir(_runtime)) if name[0] != "_" and name not in __all__]
globals().update({name: getattr(_runtime, name) for name in _others})
__all__ += _others

if not _TYPE_CHECKING:
    __all__ = _guests.offered(__all__)

    def __getattr__(name: str) -> _Any:
        """Import what a guest brings, when it is named."""
        if name == "elastic" and not hasattr(_runtime, "elastic"):
            return _importlib.import_module("hvd_compress.elastic")
        return _guests.attribute(__name__, name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
