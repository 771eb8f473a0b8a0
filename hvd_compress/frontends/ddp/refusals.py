"""What compress() refuses, and what it takes in the place of a wrapped model."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.asked import check_request
from hvd_compress.frontends.launched import before_wrapping, has_several_ranks


def check_compression(asked: Any) -> None:
    """Raise ConfigError for what is no compression, UnsupportedError for one that DDP cannot carry out."""
    check_request(asked)
    if asked.policy is not None and (why := asked.policy.needs_optimizer):
        raise UnsupportedError(f"this needs hvd_compress.torch's optimizer, as {why}")


def trains_alone(model: Any) -> bool:
    """Whether this is a module that was not wrapped, in a job of one process."""
    wrapped = isinstance(model, (DistributedDataParallel, DataParallel)) or is_sharded(model)
    return isinstance(model, torch.nn.Module) and not wrapped and not has_several_ranks()


def check_model(model: Any, call: str = "compress") -> None:
    """Raise ConfigError for what is no DDP model, UsageError for one with another hook, in words of this call."""
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(_not_wrapped(model, call))
    if model._comm_hooks:
        raise UsageError("the model has a communication hook already, and DDP takes one: wrap the module anew")


def check_gradients(model: DistributedDataParallel) -> None:
    """Raise UnsupportedError where DDP hands no gradients to a hook, or not all."""
    if model._use_python_reducer:
        raise UnsupportedError(
            'torch._dynamo.config.optimize_ddp is "python_reducer", so that torch.compile traces the exchange of '
            'gradients, and no hook sees DDP\'s buckets: set it to "ddp_optimizer" before the model is wrapped'
        )
    sparse = [name for name, module in model.module.named_modules() if getattr(module, "sparse", False) is True]
    if sparse:
        raise UnsupportedError(
            f"{sparse[0]!r} has sparse gradients, which DDP does not hand to a hook: make it with sparse=False, or use "
            "hvd_compress.torch"
        )


def is_sharded(model: Any) -> bool:
    """Whether fully_shard() has been here. Its package takes long to import, and need not have been."""
    package = sys.modules.get("torch.distributed.fsdp")
    kinds = (getattr(package, name, ()) for name in ("FSDPModule", "FullyShardedDataParallel"))  # torch 2.4 lacks one
    return any(isinstance(model, kind) for kind in kinds)


def _not_wrapped(model: Any, call: str) -> str:
    kind = type(model).__name__
    if isinstance(model, DataParallel):
        return "DataParallel is one process, which exchanges no gradients: use DistributedDataParallel and torchrun"
    if is_sharded(model):
        return (
            f"{kind} is sharded by torch.distributed.fsdp, which exchanges gradients without DDP's hook: shard the "
            f"plain module with fully_shard(), and use {call}() of hvd_compress.fsdp"
        )
    if isinstance(model, torch.optim.Optimizer):
        return (
            f"{call}() takes a model, and this is the optimizer {kind}: with Horovod, pass compression= to "
            "hvd_compress.torch.DistributedOptimizer"
        )
    return (
        f"{call}() takes a model that is wrapped, and this is a {kind}: {before_wrapping()}model = "
        f"DistributedDataParallel(model), then {call}(model, ...); where Lightning, Accelerate or transformers wrap "
        "it, hvd_compress.integrations has a line for each"
    )
