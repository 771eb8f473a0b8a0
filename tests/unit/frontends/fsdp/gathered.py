"""What the tests of gathers in few bits share."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hvd_compress.fsdp as hc
from hvd_compress.frontends.fsdp.by_hosts import HostGather
from tests.unit.frontends.fsdp.training import (
    adam,
    sharded,
    train,
)

C = hc.Compression
INT4 = hc.differences(C.int4())


@contextmanager
def watched() -> Iterator[list[tuple[int, bool]]]:
    """Yield the bytes that this rank brings to each gather of the block, and whether it is in a backward pass."""
    found: list[tuple[int, bool]] = []

    def watch(call: Callable[..., Any]) -> Callable[..., Any]:
        def seen(first: Any, own: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            found.append((own.nbytes, torch._C._current_graph_task_id() != -1))
            return call(first, own, *arguments, **options)

        return seen

    with pytest.MonkeyPatch.context() as patched:
        for where, name in ((dist, "all_gather_into_tensor"), (dist, "all_gather_single"), (HostGather, "start")):
            if hasattr(where, name):
                patched.setattr(where, name, watch(getattr(where, name)))
        yield found


def trained(mesh: Any, form: Any, steps: int = 6, **options: Any) -> Any:
    model = hc.compress(sharded(mesh, **options), C.dense(), parameters=form)
    train(model, adam(model), range(steps))
    return model


def unsharded(model: Any) -> list[torch.Tensor]:
    """Return blocks' parameters as they are gathered."""
    found = []
    for block in model.blocks:
        block.unshard()
        found += [each.detach().clone() for each in block.parameters()]
        block.reshard()
    return found
