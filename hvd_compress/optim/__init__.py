"""Optimizers for compressions that send a momentum: each gives the compression that it goes with.

    optimizer = OneBitAdam(model.parameters(), lr=1e-3, warmup_steps=1000)
    compression = optimizer.compression()

Pass both to `hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)`, or the latter to
`hc.compress(ddp_model, compression)`. Without either they are plain optimizers of torch.
"""

from hvd_compress.optim.demo import DeMo
from hvd_compress.optim.onebit_adam import OneBitAdam

__all__ = ["DeMo", "OneBitAdam"]
