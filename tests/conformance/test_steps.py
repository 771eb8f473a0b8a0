"""What must hold of every step, for every compressor, collective and number of ranks, on the in-process engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines import wire
from hvd_compress.engines.base import ALGORITHMS, Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.states import GRADIENT_UNITS
from hvd_compress.frontends.optimizer.reducer import ReduceOptions
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.conformance.cases import Case, where
from tests.conformance.lockstep import CPU, exchange, fresh
from tests.conformance.runs import Run, mean, resume, run
from tests.harness import (
    COMPRESSORS,
    OTHER_FEEDBACK,
    REQUESTS,
    SHAPES,
    asked_for,
    backward,
    flat_gradient,
    gradient,
    make_optimizer,
    make_parameters,
    on_engine,
    place,
)

HEADER_BYTES, TENSOR_BYTES = 32, 32
"""The most that a header takes, and beside it for each tensor its entry and the gap behind it; collectives send two."""

WIDE = Layout.of((100, 400), 1001)

LOSSLESS = {"topk-all": 1e-6, "dense": 1e-6, "bf16": 2e-2, "int8": 5e-2}
"""Compressors that send everything, and how far from the mean rounding takes them."""


FLAT = ("auto", *(name for collective in collectives.flat.FLAT for name in collective.names), *brought("FLAT"))
"""Collectives over all ranks alike: each one remembers what it has not sent itself."""
NOT_PRICED = brought("NOT_PRICED")
"""Their first step also evaluates thresholds and regions, which `stages` leaves out."""


def sends_elements(case: Case) -> bool:
    """Whether each element is sent as it is, in fp32, or not at all, and remembered then."""
    if case.compressor.kind != "sparsifier" or case.collective not in FLAT or not has_residual(case):
        return False
    (payloads,) = exchange(case.compressor, Layout.of(1), [torch.ones(1)]).sent
    values = payloads[0].tensors.get("values")
    return values is not None and values.dtype == torch.float32


def has_residual(case: Case) -> bool:
    """Whether gradient + residual - transmitted is remembered: a velocity or a momentum in its place is not that."""
    kinds = {kind for kind, _ in case.compressor.new_state(Layout.of((4, 5)), CPU)}
    known = case.compressor.error_feedback and case.name not in OTHER_FEEDBACK
    return known and not any(kind.startswith(GRADIENT_UNITS) for kind in kinds)


def test_results_are_bit_identical_on_all_ranks(case: Case, ranks: Run) -> None:
    for rank in ranks:
        for step, first in zip(rank.steps, ranks[0].steps, strict=True):
            assert torch.equal(step.result, first.result)
            assert step.finite
        assert rank.decisions == ranks[0].decisions
        assert len(rank.decisions) > 1, "several buckets, or their order is not tested"
        assert all(torch.equal(rank.trained[name], ranks[0].trained[name]) for name in SHAPES)
    assert all(step.result.abs().sum() > 0 for step in ranks[0].steps)


@where(sends_elements)
def test_what_is_not_sent_is_remembered_exactly(case: Case, ranks: Run) -> None:
    """residual + transmitted = corrected, and the result is the mean of what was transmitted."""
    for number, first in enumerate(ranks[0].steps):
        transmitted = []
        for step in (rank.steps[number] for rank in ranks):
            corrected = step.residual_before + step.own
            kept = step.residual_after != 0
            assert torch.equal(step.residual_after[kept], corrected[kept])
            transmitted.append(torch.where(kept, 0.0, corrected))
        torch.testing.assert_close(first.result, mean(transmitted), rtol=1e-6, atol=1e-7)


@where(has_residual)
def test_feedback_loses_nothing_but_rounding(case: Case, ranks: Run) -> None:
    """residual + transmitted = corrected: after each step what was applied and what is remembered are the sum of all
    gradients, to 1e-5 and 1e-5 of an element."""
    gradients = torch.zeros_like(ranks[0].steps[0].own, dtype=torch.float64)
    applied = torch.zeros_like(gradients)
    for number, first in enumerate(ranks[0].steps):
        gradients += mean([rank.steps[number].own for rank in ranks]).double()
        applied += first.result.double()
        remembered = mean([rank.steps[number].residual_after for rank in ranks]).double()
        torch.testing.assert_close(applied + remembered, gradients, rtol=1e-5, atol=1e-5)


@where(lambda case: not case.compressor.error_feedback)
def test_without_feedback_nothing_is_remembered(case: Case, ranks: Run) -> None:
    assert not any(step.residual_after.any() for rank in ranks for step in rank.steps)


@where(lambda case: case.name in LOSSLESS)
def test_sending_everything_equals_the_mean_to_rounding(case: Case, ranks: Run) -> None:
    tolerance = LOSSLESS[case.name]
    for number, first in enumerate(ranks[0].steps):
        expected = mean([rank.steps[number].own for rank in ranks])
        torch.testing.assert_close(first.result, expected, rtol=tolerance, atol=tolerance)


@where(lambda case: case.collective in brought("ADDING") and "allgather" in asked_for(case.compressor))
def test_a_server_adds_what_an_all_gather_would(case: Case, ranks: Run) -> None:
    """A server that sends something else, such as a momentum, would send the same to all."""
    for step, expected in zip(ranks[0].steps, run(replace(case, collective="allgather"))[0].steps, strict=True):
        torch.testing.assert_close(step.result, expected.result, rtol=1e-5, atol=1e-6)


@where(
    lambda case: (
        case.collective in set(FLAT) - {"auto", *NOT_PRICED}
        and collectives.meanings(case.collective) == (case.collective,)
    )
)
def test_an_exchange_sends_the_bytes_that_wire_says(case: Case) -> None:
    """As many as the collective's calls have to move of payloads of that size, or no more where data decide; beside
    them headers, which are small here."""
    path = Path(case.collective)

    def body(engine: InProcessEngine) -> int:
        place(engine, case.hosts)
        gradient = torch.randn(WIDE.numel, generator=torch.Generator().manual_seed(engine.rank))
        state = fresh(case.compressor, WIDE)
        work = Work(gradient, WIDE, 0, 0, 1 / case.size, state, engine.rank, world_size=case.size)
        carried = collectives.build(case.compressor, path).exchange(work, engine.rank, case.size)
        carried.encode()
        carried.communicate(engine)
        assert carried.decode()
        return engine.sent_bytes

    sent = sum(run_ranks(case.size, body)) / case.size
    stages = collectives.stages(case.compressor, path, WIDE, case.size)
    rounds = case.compressor.wire(WIDE)
    above = sum(round_.nbytes for round_ in rounds) / max(1, sum(round_.priced for round_ in rounds))
    announced = sum(stage_bytes(stage, case.size) for stage in stages) * max(1.0, above)
    payloads = exchange(case.compressor, WIDE, [torch.ones(WIDE.numel)]).sent
    tensors = max([2, *(len(payload.tensors) for (payload,) in payloads)])
    headers = len(stages) * (HEADER_BYTES + TENSOR_BYTES * tensors) * (case.size - 1)
    assert sent <= announced + headers + len(stages)
    if all(round_.fixed for round_ in rounds):
        assert sent >= announced - len(stages), "formulas round down, by no more than a byte each"
        assert headers <= announced / 2, "wire() could say anything"


@where(lambda case: case.collective in FLAT)
def test_a_report_counts_what_was_sent(case: Case, ranks: Run) -> None:
    """To a byte for each rank and each of the calls of a bucket, whose formulas round down.

    Of collectives in which ranks differ, formulas take all payloads to be as long as this rank's.
    """
    for number, first in enumerate(ranks[0].steps[1:], 1):
        sent = sum(rank.steps[number].sent_bytes for rank in ranks) / case.size
        counted = sum(rank.steps[number].counted_bytes for rank in ranks) / case.size
        assert abs(sent - counted) <= 3 * len(SHAPES) * case.size
        assert (first.sent_messages > 0) == (case.size > 1)


def stage_bytes(stage: Stage, size: int) -> int:
    """Mean over ranks of the bytes that a call sends, by the textbook."""
    if stage.verb in ("allreduce", "broadcast"):
        found: int = getattr(wire, stage.verb)(int(stage.size), size, stage.algorithm)
        return found
    return int(getattr(wire, stage.verb)(int(stage.size), size))


def test_a_resumed_run_is_the_same_to_the_bit(case: Case, ranks: Run) -> None:
    for rank, resumed in zip(ranks, resume(case, ranks), strict=True):
        assert all(torch.equal(resumed[name], value) for name, value in rank.trained.items())


def results(engine: Engine, request: Request, **arguments: object) -> list[torch.Tensor]:
    """Return what three steps come to."""
    parameters, optimizer = on_engine(engine, request, **arguments)
    found = []
    for step in range(3):
        backward(parameters, engine.rank, step)
        optimizer.step()
        found.append(flat_gradient(parameters).clone())
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["topk-star", "topk-var", "dense"])
def test_results_are_bit_identical_with_every_algorithm(name: str, algorithm: str) -> None:
    request = Request(REQUESTS[name].compressor, REQUESTS[name].collective, algorithm)
    ranks = run_ranks(4, lambda engine: results(engine, request))
    for found in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, ranks[0], strict=True))
    torch.testing.assert_close(ranks[0], run_ranks(4, lambda engine: results(engine, REQUESTS[name]))[0])


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "efsign", "momentum", "momentum-warmup", "dense"])
def test_sum_is_the_average_times_the_number_of_ranks(name: str) -> None:
    averages = run_ranks(3, lambda engine: results(engine, REQUESTS[name]))[0]
    sums = run_ranks(3, lambda engine: results(engine, REQUESTS[name], options=ReduceOptions(average=False)))[0]
    divided = run_ranks(3, lambda engine: results(engine, REQUESTS[name], options=ReduceOptions(predivide_factor=4.0)))
    torch.testing.assert_close(sums, [3 * average for average in averages], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(divided[0], averages, rtol=1e-5, atol=1e-6)


DEFAULTS = [(n, s) for n, c in COMPRESSORS.items() for s in ("auto", "hierarchical-both") if s in asked_for(c)]


@pytest.mark.parametrize(("name", "collective"), DEFAULTS)
def test_a_default_dtype_changes_nothing(name: str, collective: str) -> None:
    drawn = {(n, rank): gradient(n, shape, rank, 0) for n, shape in SHAPES.items() for rank in range(2)}

    def body(engine: InProcessEngine) -> torch.Tensor:
        place(engine, (0, 0))
        parameters = make_parameters()
        optimizer = make_optimizer(parameters, Request(COMPRESSORS[name], collective), lambda: engine, engine.rank, 2)
        for _ in range(2):
            optimizer.zero_grad()
            sum((p * drawn[n, engine.rank]).sum() for n, p in parameters.items()).backward()
            optimizer.synchronize()
        return flat_gradient(parameters).clone()

    expected, default = run_ranks(2, body), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = run_ranks(2, body)
    finally:
        torch.set_default_dtype(default)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
