"""Buckets at the edge of what there is: empty, of one element, all zero, all of one magnitude."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import Cast
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.conformance.cases import Case
from tests.conformance.runs import mean, run
from tests.conformance.test_steps import has_residual
from tests.harness import NEVER_ZERO, flat_gradient, gradient, hash_name, make_optimizer, make_parameters

SHAPES = {"empty": (0,), "one": (1,), "zero": (70,), "ties": (9, 11), "normal": (13, 10)}
"""Each parameter is a bucket of its own, and is named by its gradient."""

EACH_ALONE = Settings(1, 60)


def draw(name: str, shape: tuple[int, ...], rank: int, step: int) -> torch.Tensor:
    """Zeros everywhere in the first step. Ties are of one magnitude, signs differ between elements, ranks and steps."""
    if step == 0 or name == "zero":
        return torch.zeros(shape)
    if name == "ties":
        generator = torch.Generator().manual_seed(hash_name(name) + 100 * rank + step)
        return 0.75 * (2.0 * torch.randint(2, shape, generator=generator) - 1.0)
    return gradient(name, shape, rank, step)


def test_they_come_out_right(case: Case) -> None:
    """Finite, the same on all ranks, zero where all is zero, and with feedback nothing is lost."""
    ranks = run(case, steps=3, shapes=SHAPES, draw=draw, settings=EACH_ALONE)
    assert len(ranks[0].decisions) == len(SHAPES)
    stays_zero = case.name not in NEVER_ZERO
    zero = slice(1, 71)
    for rank in ranks:
        assert not (stays_zero and rank.steps[0].result.any())
        for step, first in zip(rank.steps, ranks[0].steps, strict=True):
            assert step.finite
            assert torch.equal(step.result, first.result)
            assert not (stays_zero and step.result[zero].any())
            assert not (stays_zero and step.residual_after[zero].any())
        assert rank.steps[-1].result.any()
    if has_residual(case):
        gradients = sum(mean([rank.steps[step].own for rank in ranks]).double() for step in range(3))
        applied = sum(step.result.double() for step in ranks[0].steps)
        remembered = mean([rank.steps[-1].residual_after for rank in ranks]).double()
        torch.testing.assert_close(applied + remembered, gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 6e4), (torch.bfloat16, 3e38)], ids=["fp16", "bf16"])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("collective", ["dense", "alltoall"])
def test_the_average_of_large_16_bit_gradients_is_finite(
    dtype: torch.dtype, most: float, size: int, collective: str
) -> None:
    """Ranks divide before they sum: headroom does not shrink with their number."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        if collective == "alltoall":
            engine.capabilities = replace(engine.capabilities, sum_dtypes=(torch.float32,))
        parameters = make_parameters(dtype=dtype)
        optimizer = make_optimizer(parameters, Request(Cast()), lambda: engine, engine.rank, engine.world_size)
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, most)
        optimizer.synchronize()
        assert {decision.path.collective for decision in of(optimizer).decisions.values()} == {collective}
        return flat_gradient(parameters)

    for result in run_ranks(size, body):
        torch.testing.assert_close(result, torch.full_like(result, most), rtol=4 * torch.finfo(dtype).eps, atol=0)
