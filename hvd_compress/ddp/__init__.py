"""Compressed gradients for PyTorch's DistributedDataParallel: `import hvd_compress.ddp as hc`.

model = DistributedDataParallel(model)
hc.compress(model, hc.Compression.topk(0.01))
"""

from hvd_compress.ddp.api import (
    Compression,
    compress,
    controller,
    decisions,
    follow_loss_scale,
    last_step,
    load_state_dict,
    save_plan,
    state_dict,
)
from hvd_compress.step_report import StepReport

__all__ = [
    "Compression",
    "StepReport",
    "compress",
    "controller",
    "decisions",
    "follow_loss_scale",
    "last_step",
    "load_state_dict",
    "save_plan",
    "state_dict",
]
