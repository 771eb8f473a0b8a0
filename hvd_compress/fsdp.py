"""Compressed gradients for PyTorch's FSDP2: `import hvd_compress.fsdp as hc`.

for block in model.blocks:
    fully_shard(block)
fully_shard(model)
hc.compress(model, hc.Compression.int4())

On a mesh of two dimensions (HSDP) what replicas exchange is compressed, and what shards do is not: the inner dimension
should lie within a host, where nothing needs to be.
"""

from hvd_compress.front.ddp.api import Compression
from hvd_compress.front.fsdp.api import (
    compress,
    decisions,
    drop_step,
    follow_loss_scale,
    last_step,
    load_state_dict,
    state_dict,
)
from hvd_compress.session.report import StepReport

__all__ = [
    "Compression",
    "StepReport",
    "compress",
    "decisions",
    "drop_step",
    "follow_loss_scale",
    "last_step",
    "load_state_dict",
    "state_dict",
]
