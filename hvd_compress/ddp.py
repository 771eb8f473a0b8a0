"""Compressed gradients for PyTorch's DistributedDataParallel: `import hvd_compress.ddp as hc`.

    model = DistributedDataParallel(model)
    hc.compress(model, hc.Compression.topk(0.01))

What compresses a momentum (Compression.momentum, Compression.demo) has its own optimizers in hvd_compress.optim:

    optimizer = OneBitAdam(model.parameters(), lr=1e-3, warmup_steps=1000)
    hc.compress(model, optimizer.compression())
"""

from hvd_compress.front.batch_size import BatchSizeSchedule
from hvd_compress.front.ddp.api import (
    Compression,
    ccr,
    compress,
    controller,
    decisions,
    drop_step,
    end_epoch,
    follow_learning_rate,
    follow_loss_scale,
    gather_figures,
    gathered_state_dict,
    hook,
    last_step,
    load_gathered_state_dict,
    load_state_dict,
    profile_ccr,
    save_plan,
    state_dict,
)
from hvd_compress.session.report import StepReport

__all__ = [
    "BatchSizeSchedule",
    "Compression",
    "StepReport",
    "ccr",
    "compress",
    "controller",
    "decisions",
    "drop_step",
    "end_epoch",
    "follow_learning_rate",
    "follow_loss_scale",
    "gather_figures",
    "gathered_state_dict",
    "hook",
    "last_step",
    "load_gathered_state_dict",
    "load_state_dict",
    "profile_ccr",
    "save_plan",
    "state_dict",
]
