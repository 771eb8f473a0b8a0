"""Whose parameters are averaged: those that a rank trains, and the ranks that train the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.engines.select import choose_arrivals, choose_engine, choose_torch_engine
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.ddp.refusals import is_sharded
from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
from hvd_compress.frontends.original import original_of
from hvd_compress.membership.member import known, require_together
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings


@dataclass(frozen=True)
class Replicas:
    """A model of which each rank, or each group of ranks that share it, has a replica.

    Attributes:
        parameters: what this rank trains, by name; of a sharded model its shards.
        connect: of the compression and settings, creates the engine over the ranks that train the same.
        rank, world_size: among these ranks.
        settings: those of the environment, if not given.
        shard: as FrontEnd.
        sizes: by which fragments are cut, in any one unit, the same on all ranks; bytes of `parameters`, if not given.
        arrivals: as Session.
        take_gradients: called before gradients of `parameters` are exchanged, in synchronous steps.
        give_gradients: called after that.
        buffers: returns what has a mean, too, such as BatchNorm's statistics.
        before_writing: called before parameters are written outside of a step.
        come_and_go: whether other ranks may come, also to one that is alone.
        require_together: raises CommunicationError where ranks are to meet anew.
    """

    parameters: Mapping[str, torch.Tensor]
    connect: Callable[[Request, Settings], Engine]
    rank: int
    world_size: int
    settings: Settings = field(default_factory=Settings.from_environment)
    shard: str = ""
    sizes: Mapping[str, int] | None = None
    arrivals: Arrivals | None = None
    take_gradients: Callable[[], None] = lambda: None
    give_gradients: Callable[[], None] = lambda: None
    buffers: Callable[[], Sequence[torch.Tensor]] = tuple
    before_writing: Callable[[], None] = lambda: None
    come_and_go: bool = False
    require_together: Callable[[], None] = lambda: None

    @classmethod
    def whole(cls, optimizer: torch.optim.Optimizer, model: Any, request: Request) -> Replicas:
        """Return those of a plain model, on all ranks of hvd.init().

        Raises:
            ConfigError: the model is wrapped, or sharded.
            UsageError: hvd.init() was not called.
        """
        from hvd_compress.frontends.horovod.runtime_selection import hvd  # Horovod, which FSDP2 does not need

        model = original_of(model)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"LocalSteps takes an optimizer, then a model, and this is a {type(model).__name__}")
        if isinstance(model, DistributedDataParallel):
            raise ConfigError(
                "DistributedDataParallel exchanges gradients in each step, which local steps are to save: pass the "
                "module that it was made from, and call that one, or, where a library has wrapped it, call "
                "hvd_compress.ddp.local_steps(model, optimizer, ...)"
            )
        if hasattr(model, "_get_fsdp_state"):
            raise ConfigError(
                "this model is sharded by fully_shard(): call hvd_compress.fsdp.local_steps(model, optimizer, ...)"
            )
        if is_sharded(model) or isinstance(model, DataParallel):
            raise ConfigError(
                f"a {type(model).__name__} is no replica of a rank's own: pass a plain model, or shard that with "
                "fully_shard() on a mesh of two dimensions and call hvd_compress.fsdp.local_steps(model, optimizer)"
            )
        if not hvd.is_initialized():
            raise UsageError("hvd.init() comes first: without it there are no ranks to train with")
        connect, buffers = partial(_connect, hvd), partial(averaged_buffers, model)
        arrivals = choose_arrivals(request.engine, None, hvd)
        return cls(
            trained(optimizer, model),
            connect,
            hvd.rank(),
            hvd.size(),
            arrivals=arrivals,
            buffers=buffers,
            come_and_go=known() is not None,
            require_together=require_together,
        )


def _connect(hvd: Any, request: Request, settings: Settings) -> Engine:
    return choose_engine(request.engine, None, hvd, settings.timeout_s)


def connect_over(
    group: dist.ProcessGroup | None, device: torch.device | None, request: Request, settings: Settings
) -> Engine:
    """Return the engine over a process group of torch.distributed, for parameters on a device."""
    on = device if device is not None and device.type == "cuda" else None
    return choose_torch_engine(request.engine, group, device=on, timeout_s=settings.timeout_s)


def require_all_trained(parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError where some of these are trained by nobody who exchanges them: ranks would go apart in them."""
    known = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if left := [name for name, each in parameters.items() if each.requires_grad and id(each) not in known]:
        raise ConfigError(
            f"the optimizer does not train {len(left)} parameters, {left[0]!r} first, on which ranks would not agree "
            "any more: give one optimizer all of them, or freeze them"
        )


def trained(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters of a model that an optimizer trains, by name. Raises ConfigError where it has others."""
    names = trainable(name_parameters(optimizer, list(model.named_parameters())))
    return {name: parameter for parameter, name in names.items()}


def averaged_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers of a model that have a mean, such as BatchNorm's statistics."""
    return [each for each in model.buffers() if each.is_floating_point()]
