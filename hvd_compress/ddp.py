"""Compressed gradients for PyTorch's DistributedDataParallel: `import hvd_compress.ddp as hc`.

    model = DistributedDataParallel(model)
    hc.compress(model, hc.Compression.topk(0.01))
    hc.of(model).last_step

What compresses a momentum (Compression.momentum, Compression.demo) has its own optimizers in hvd_compress.optim:

    optimizer = OneBitAdam(model.parameters(), lr=1e-3, warmup_steps=1000)
    hc.compress(model, optimizer.compression())
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from hvd_compress import guests as _guests
from hvd_compress.frontends.ddp.api import Compression, compress, hook
from hvd_compress.frontends.ddp.local import local_steps
from hvd_compress.frontends.known import load_state_dict, of, state_dict
from hvd_compress.frontends.known import moved as _moved
from hvd_compress.session.report import StepReport

if _TYPE_CHECKING:
    from hvd_compress.papers.accordion.batch_size import BatchSizeSchedule

__all__ = [
    "BatchSizeSchedule",
    "Compression",
    "StepReport",
    "compress",
    "hook",
    "load_state_dict",
    "local_steps",
    "of",
    "state_dict",
]

if not _TYPE_CHECKING:
    __all__ = _guests.offered(__all__)

    def __getattr__(name: str) -> _Any:
        """Import what a guest brings, when it is named."""
        if there := _moved(f"{__name__}.{name}", name):
            raise AttributeError(there)
        return _guests.attribute(__name__, name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
