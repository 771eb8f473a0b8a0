"""Buckets of a device with streams, played in ordinary memory (tests/played.py), over the engines that there are."""

from __future__ import annotations

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.devices.staged import StagedLane
from hvd_compress.engines import select
from hvd_compress.frontends.horovod.runtime_selection import hvd as runtime
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, backward, flat_gradient, flat_residual, make_optimizer, make_parameters
from tests.parallel.training import assert_same_on_all_ranks
from tests.played import PlayedLanes

STEPS = 4


def train(name: str, engine: str, **lanes: object) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return what was trained, the residuals, and the bytes over the bus in the last step."""
    parameters = make_parameters()
    optimizer = make_optimizer(
        parameters, REQUESTS[name], lambda: select.choose_engine(engine, api=runtime), hvd.rank(), hvd.size(),
        settings=Settings(600, 300), **lanes,
    )  # fmt: skip
    for step in range(STEPS):
        backward(parameters, hvd.rank(), step)
        optimizer.synchronize()
        reduced = flat_gradient(parameters).clone()
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    trained = torch.cat([reduced, *(parameter.detach().reshape(-1) for parameter in parameters.values())])
    return trained, flat_residual(optimizer, parameters), hvd.of(optimizer).last_step.bus_bytes


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "efsign", "bf16", "dense"])
def test_staged_buffers_give_the_bits_of_the_cpu(name: str, engine: str) -> None:
    expected, remembered, crossed = train(name, engine)
    assert crossed == 0
    found, residual, crossed = train(name, engine, lanes=PlayedLanes(StagedLane))
    assert crossed > 0
    assert torch.equal(found, expected)
    assert torch.equal(residual, remembered)
    assert_same_on_all_ranks(found)
