"""Local steps of an FSDP2 model: replicas exchange what their shards have learned, once in several steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from hvd_compress.engines.select import choose_torch_arrivals
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.fsdp.api import (
    is_compressed,
    mark_local,
    one_mesh,
    require_not_local,
    require_sharded,
    settings_of,
)
from hvd_compress.frontends.fsdp.groups import Shard, groups_of
from hvd_compress.frontends.fsdp.requests import for_replicas
from hvd_compress.frontends.local.replicas import Replicas, connect_over, require_all_trained
from hvd_compress.frontends.local.steps import LocalSteps
from hvd_compress.frontends.original import original_of


def local_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> LocalSteps:
    """Have the replicas of an FSDP2 model exchange what they have learned once in several steps, not gradients in each.

    Call it on every rank, after fully_shard() was called for the submodules and the root with one mesh of two
    dimensions (HSDP). From then on FSDP reduces gradients within a replica alone, dense, and each rank exchanges what
    its shards have moved with the ranks of other replicas that have the same. Optimizer state stays each replica's own;
    buffers are as FSDP leaves them. A checkpoint of the model is one of all replicas after finish(), or within
    averaged().

    Args:
        model: the root module.
        optimizer: of its parameters.
        options: `every`, `compression` and all others, as LocalSteps takes them, but for every="auto".

    Raises:
        ConfigError: the model is not sharded, has one replica, or is compressed; or as LocalSteps.
        UsageError: its replicas take local steps already.
        UnsupportedError: every="auto", which ranks with other shards would choose apart; a compression that cannot be
            had here, or a setting of FSDP.
    """
    model = original_of(model)
    require_sharded(model, "local_steps")
    require_not_local(model)
    if is_compressed(model):
        raise ConfigError("compress() exchanges this model's gradients in each step: leave it out for local steps")
    if options.get("every") == "auto":
        raise UnsupportedError(
            'every="auto" would choose for each shard by itself: pass a number, or a function of the steps so far'
        )
    groups, frozen = groups_of(model), groups_of(model, frozen=True)
    shards, over = one_mesh(groups)
    if over is None:
        raise ConfigError(
            "the model has one replica: call fully_shard(module, mesh=mesh) with a mesh of two dimensions, whose outer "
            "one counts replicas"
        )
    if (compression := options.get("compression")) is not None:
        for_replicas(compression, feedback=False)
    require_all_trained(dict(model.named_parameters()), optimizer)
    held = Held([shard for group in groups[::-1] for shard in group.trained if shard.local().numel()])
    ways = groups[0].ways
    replicas = Replicas(
        held.parameters,
        partial(connect_over, over, groups[0].device),
        over.rank(),
        over.size(),
        settings_of(over),
        shard=f", shard {shards.rank()} of {ways}" if shards is not None else "",
        sizes={shard.name: shard.numel for shard in held.shards},
        arrivals=choose_torch_arrivals(over),
        take_gradients=held.take,
        give_gradients=held.give,
        before_writing=partial(_reshard, model),
    )
    made = LocalSteps(optimizer, replicas, **options)
    mark_local(model)
    for group in [*groups, *frozen]:
        if group.replica_group is not None:
            group.take_over_replicas()
    return made


def shards_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
    """Return this rank's shards of a model that is one replica, by name, and what to call before they are written to.

    Raises:
        ConfigError: the mesh of the model has replicas itself; or the optimizer does not train all of the model.
        UsageError: its replicas take local steps already.
    """
    model = original_of(model)
    require_not_local(model)
    groups = groups_of(model)
    _, over = one_mesh(groups)
    if over is not None:
        raise ConfigError(
            "the model is sharded over a mesh that has replicas itself, and these come from the manager: call "
            "fully_shard(module, mesh=mesh) with a mesh of one dimension, over the ranks of a replica group"
        )
    require_all_trained(dict(model.named_parameters()), optimizer)
    held = Held([shard for group in groups[::-1] for shard in group.trained if shard.local().numel()])
    return held.parameters, partial(_reshard, model)


def _reshard(model: torch.nn.Module) -> None:
    """Free gathered parameters, which FSDP keeps of the root module after an evaluation: they would be used again."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            module.reshard()  # type: ignore[operator]


class Held:
    """This rank's shards as tensors of their own, in the same memory.

    Attributes:
        parameters: by name.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.parameters = {shard.name: shard.local().detach().requires_grad_() for shard in shards}

    def take(self) -> None:
        """Let their gradients be those that FSDP has left."""
        for shard, held in zip(self.shards, self.parameters.values(), strict=True):
            gradient: Any = shard.parameter.grad
            held.grad = None if gradient is None else gradient.to_local()

    def give(self) -> None:
        """Let FSDP have gradients that there were none of."""
        from torch.distributed.tensor import DTensor

        for shard, held in zip(self.shards, self.parameters.values(), strict=True):
            parameter: Any = shard.parameter
            if parameter.grad is None and held.grad is not None:
                parameter.grad = DTensor.from_local(
                    held.grad,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            held.grad = None
