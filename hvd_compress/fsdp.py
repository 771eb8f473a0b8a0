"""Compressed gradients for PyTorch's FSDP2: `import hvd_compress.fsdp as hc`.

for block in model.blocks:
    fully_shard(block)
fully_shard(model)
hc.compress(model, hc.Compression.int4())
hc.of(model).last_step

With parameters=hc.Compression.int8() what FSDP gathers travels in few bits, too.

On a mesh of two dimensions (HSDP) what replicas exchange is compressed, and what shards do is not: the inner dimension
should lie within a host, where nothing needs to be.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from hvd_compress.frontends.ddp.api import Compression
from hvd_compress.frontends.fsdp.api import compress
from hvd_compress.frontends.fsdp.gathers import differences
from hvd_compress.frontends.fsdp.local import local_steps
from hvd_compress.frontends.known import load_state_dict, of, state_dict
from hvd_compress.frontends.known import moved as _moved
from hvd_compress.session.report import StepReport

__all__ = ["Compression", "StepReport", "compress", "differences", "load_state_dict", "local_steps", "of", "state_dict"]

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        """Say where a function of earlier versions is now."""
        raise AttributeError(_moved(f"{__name__}.{name}", name) or f"module {__name__!r} has no attribute {name!r}")
