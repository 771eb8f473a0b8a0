"""torch.distributed._composable.replicate: a DistributedDataParallel behind a module's own forward hooks.

The other composable replicate(), of replicate_with_fsdp, is FSDP2's own and needs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_compress.frontends.ddp.api import compress as compress_ddp
from hvd_compress.frontends.ddp.state import known_handle, known_state, require_working
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.request.request import Request


def ddp_of(model: torch.nn.Module, make: bool = False) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that replicate() has made of a module; None where there is none.

    `make` it where the first forward pass would; collective then.
    """
    from torch.distributed._composable.replicate import DDP, replicate

    if not isinstance(model, DDP):
        return None
    state: Any = replicate.state(model)
    if not state.has_initialized:
        if not make:
            return None
        state.lazy_init()
    found: DistributedDataParallel = state._ddp
    return found


def compress(model: torch.nn.Module, ddp: DistributedDataParallel, compression: Request) -> None:
    """Compress its gradients as those of any DistributedDataParallel. Raises what that does."""
    from torch.distributed._composable.replicate import replicate

    known = known_state(ddp) is not None
    compress_ddp(ddp, compression)
    if known:
        return
    handle = known_handle(ddp)
    assert handle is not None
    handle.front = replace(
        handle.front,
        rank=dist.get_rank(),  # by which checkpoints name it
        world_size=dist.get_world_size(),
        named=partial(_named, tuple(replicate.state(model)._param_names)),
    )
    model.register_forward_pre_hook(partial(_require_working, ddp))  # that of `ddp` is never called


def _named(names: Sequence[str], bucket: tuple[str, ...]) -> tuple[str, ...]:
    """This DistributedDataParallel calls parameters by their numbers."""
    return tuple(names[int(number)] for number in bucket)


@eagerly
def _require_working(ddp: DistributedDataParallel, _: Any, arguments: Any) -> None:
    require_working(ddp, arguments)
