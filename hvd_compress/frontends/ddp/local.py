"""Local steps of a model that a library has wrapped in DDP, as Accelerate, Lightning and transformers do."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_compress.engines.select import choose_torch_arrivals
from hvd_compress.engines.torch_timeout import own_timeout_s
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.ddp.refusals import check_model, trains_alone
from hvd_compress.frontends.ddp.state import known_state
from hvd_compress.frontends.local.replicas import Replicas, connect_over, require_all_trained, trained
from hvd_compress.frontends.local.steps import LocalSteps
from hvd_compress.frontends.original import original_of
from hvd_compress.settings import Settings

_local: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def takes_local_steps(model: Any) -> bool:
    """Whether a module, as DDP has wrapped it, exchanges no gradients."""
    return model in _local


def local_steps(model: Any, optimizer: Any, **options: Any) -> LocalSteps:
    """Have the ranks of a DDP model exchange what they have learned once in several steps, not gradients in each.

    For models that a library wraps: of your own loop, pass the plain model to LocalSteps. DDP exchanges nothing from
    now on, neither gradients nor buffers. Call it on every rank, before the first forward pass.

    Args:
        model: wrapped in DistributedDataParallel, or compiled or prepared after that.
        optimizer: of its parameters, Accelerate's too.
        options: `every`, `compression` and all others, as LocalSteps takes them.

    Raises:
        ConfigError: the model is not wrapped, or with static_graph; or as LocalSteps.
        UsageError: its gradients are compressed, or it takes local steps already.
    """
    wrapped = original_of(model)
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wraps one
    if trains_alone(wrapped):
        return LocalSteps(
            optimizer, Replicas(trained(optimizer, wrapped), partial(connect_over, None, None), 0, 1), **options
        )
    if known_state(model) is not None or takes_local_steps(wrapped):
        raise UsageError("this model's gradients are compressed, or it takes local steps already: wrap the module anew")
    check_model(wrapped, "local_steps")
    if wrapped.static_graph:
        raise ConfigError("DDP(static_graph=True) exchanges gradients in its first step: leave static_graph out")
    over, parameters = wrapped.process_group, _parameters(wrapped, optimizer)
    replicas = Replicas(
        parameters,
        partial(connect_over, over, next((p.device for p in wrapped.parameters() if p.is_cuda), None)),
        over.rank(),
        over.size(),
        Settings.from_environment().waiting(max(own_timeout_s(over), own_timeout_s())),
        arrivals=choose_torch_arrivals(over),
        buffers=partial(_buffers, wrapped),
    )
    made = LocalSteps(optimizer, replicas, **options)
    wrapped.require_backward_grad_sync = wrapped.require_forward_param_sync = False  # as within no_sync()
    _local.add(wrapped)
    return made


def _parameters(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    ignored = set(model.parameters_to_ignore)
    require_all_trained(
        {name: each for name, each in model.module.named_parameters() if name not in ignored}, optimizer
    )
    return {name: each for name, each in trained(optimizer, model.module).items() if name not in ignored}


def _buffers(model: DistributedDataParallel) -> list[torch.Tensor]:
    ignored = set(model.parameters_to_ignore)
    return [each for name, each in model.module.named_buffers() if name not in ignored and each.is_floating_point()]
