"""What must hold of every step, for every compressor and scheme, on the in-process engine with several world sizes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hvd_compress.decision import Request
from hvd_compress.engines.base import ALGORITHMS, Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.reducer import ReduceOptions
from tests.harness import REQUESTS, SPARSIFIERS, backward, flat_gradient, flat_residual, gradient, on_engine

WORLD_SIZES = (1, 2, 3, 4, 7)
STEPS = 4


@dataclass(frozen=True)
class Observed:
    """One step of one rank, all parameters in one flat tensor."""

    own: torch.Tensor
    residual_before: torch.Tensor
    residual_after: torch.Tensor
    result: torch.Tensor


def observe(engine: Engine, request: Request, **arguments: object) -> list[Observed]:
    """Train for a few steps with gradients that differ between ranks and steps."""
    parameters, optimizer = on_engine(engine, request, **arguments)
    history = []
    for step in range(STEPS):
        before = flat_residual(optimizer, parameters)
        own = [gradient(name, tuple(p.shape), engine.rank, step).reshape(-1) for name, p in parameters.items()]
        backward(parameters, engine.rank, step)
        optimizer.synchronize()
        after = flat_residual(optimizer, parameters)
        history.append(Observed(torch.cat(own), before, after, flat_gradient(parameters).clone()))
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    return history


def mean_gradient(ranks: list[list[Observed]], step: int) -> torch.Tensor:
    return torch.stack([history[step].own.double() for history in ranks]).mean(0).float()


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_bit_identical_on_all_ranks(name: str, size: int) -> None:
    ranks = run_ranks(size, lambda engine: observe(engine, REQUESTS[name]))
    for step in range(STEPS):
        for history in ranks[1:]:
            assert torch.equal(history[step].result, ranks[0][step].result)
        assert ranks[0][step].result.abs().sum() > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["topk-star", "topk-var", "dense"])
def test_results_are_bit_identical_with_every_algorithm(name: str, algorithm: str) -> None:
    request = Request(REQUESTS[name].compressor, REQUESTS[name].scheme, algorithm)
    ranks = run_ranks(4, lambda engine: observe(engine, request))
    plain = run_ranks(4, lambda engine: observe(engine, REQUESTS[name]))
    for step in range(STEPS):
        for history in ranks[1:]:
            assert torch.equal(history[step].result, ranks[0][step].result)
        torch.testing.assert_close(ranks[0][step].result, plain[0][step].result)


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("name", SPARSIFIERS)
def test_what_is_not_sent_is_remembered_exactly(name: str, size: int) -> None:
    """residual + transmitted = corrected, and the result is the mean of what was transmitted."""
    ranks = run_ranks(size, lambda engine: observe(engine, REQUESTS[name]))
    for step in range(STEPS):
        transmitted = []
        for history in ranks:
            seen = history[step]
            corrected = seen.residual_before + seen.own
            kept = seen.residual_after != 0
            assert torch.equal(seen.residual_after[kept], corrected[kept])
            transmitted.append(torch.where(kept, 0.0, corrected))
        mean = torch.stack(transmitted).double().mean(0).float()
        torch.testing.assert_close(ranks[0][step].result, mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize(
    "name",
    [
        *("efsign", "powersgd", "powersgd-allgather", "int8", "int4", "int2", "int8-gather", "topk-hitopk"),
        *("topk-hierarchical", "powersgd-hierarchical", "efsign-within", "int4-both"),
    ],
)
def test_feedback_loses_nothing_but_rounding(name: str, size: int) -> None:
    """Summed over the steps, what was applied and what is remembered make up all gradients."""
    ranks = run_ranks(size, lambda engine: observe(engine, REQUESTS[name]))
    gradients = sum(mean_gradient(ranks, step).double() for step in range(STEPS))
    applied = sum(ranks[0][step].result.double() for step in range(STEPS))
    remembered = torch.stack([history[-1].residual_after.double() for history in ranks]).mean(0)
    torch.testing.assert_close(applied + remembered, gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("name", "tolerance"), [("topk-all", 1e-6), ("star-all", 1e-6), ("dense", 1e-6), ("bf16", 2e-2), ("int8", 5e-2)]
)
def test_sending_everything_equals_the_mean_to_rounding(name: str, tolerance: float, size: int) -> None:
    ranks = run_ranks(size, lambda engine: observe(engine, REQUESTS[name]))
    for step in range(STEPS):
        torch.testing.assert_close(ranks[0][step].result, mean_gradient(ranks, step), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "efsign", "dense"])
def test_sum_is_the_average_times_the_number_of_ranks(name: str) -> None:
    averages = run_ranks(3, lambda engine: observe(engine, REQUESTS[name]))
    sums = run_ranks(3, lambda engine: observe(engine, REQUESTS[name], options=ReduceOptions(average=False)))
    divided = run_ranks(3, lambda engine: observe(engine, REQUESTS[name], options=ReduceOptions(predivide_factor=4.0)))
    for step in range(STEPS):
        torch.testing.assert_close(sums[0][step].result, 3 * averages[0][step].result, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(divided[0][step].result, averages[0][step].result, rtol=1e-5, atol=1e-6)
