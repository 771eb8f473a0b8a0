"""Error feedback whose coefficient grows with the steps: one rule for every compressor that remembers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import CompressedMomentum, Compressor
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.schedule import FeedbackSchedule
from hvd_compress.feedback.states import GRADIENT_UNITS
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.harness import (
    OTHER_FEEDBACK,
    REQUESTS,
    SHAPES,
    alone,
    backward,
    flat_gradient,
    flat_residual,
    gradient,
    make_optimizer,
    make_parameters,
    on_engine,
    remembered,
    use,
)
from tests.played import LANES, PlayedLanes

STEPS, SIZE = 6, 3
SCHEDULE = FeedbackSchedule(0.5, 0.25, 2)
COEFFICIENTS = (0.5, 0.5, 0.75, 0.75, 1.0, 1.0)
BROUGHT = dict(brought("FIXED"))
REMEMBERING = {
    **{
        name: request
        for name, request in REQUESTS.items()
        if request.compressor.error_feedback
        and not isinstance(request.compressor, CompressedMomentum)
        and name not in OTHER_FEEDBACK
    },
    **BROUGHT,
}
OF_GUESTS = [name for name in dict(brought("REQUESTS")) if name in REMEMBERING]
"""A momentum's residual is what is left of it, and not of the gradient."""
NOTHING_LEFT = ("topk-all", "star-all")
ALONE = brought("ALONE")
"""Leaves nothing with one rank."""


def scheduled(name: str) -> Request:
    return replace(REMEMBERING[name], feedback=SCHEDULE)


@dataclass(frozen=True)
class Seen:
    """One step of one rank, all parameters in one flat tensor."""

    own: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    result: torch.Tensor


def given(rank: int, step: int) -> torch.Tensor:
    return torch.cat([gradient(name, shape, rank, step).reshape(-1) for name, shape in SHAPES.items()])


def fed(compressor: Compressor, optimizer: ReducingOptimizer, rank: int, step: int) -> torch.Tensor:
    """Return what the residual is added to: the gradient, or the velocity that a compressor such as DGC makes of it."""
    own = given(rank, step)
    states = compressor.new_state(Layout.of(*SHAPES.values()), torch.device("cpu"))
    kinds = [kind for kind, _ in states if kind.startswith(GRADIENT_UNITS) and kind.endswith(".velocity")]
    if not kinds:
        return own
    kept = remembered(optimizer.state_dict()["hvd_compress"])["states"].get(kinds[0], {})
    velocity = [kept.get(n, torch.zeros(torch.Size(s).numel())).reshape(-1) for n, s in SHAPES.items()]
    return compressor.momentum * torch.cat(velocity) + own


def observe(engine: InProcessEngine, request: Request, **arguments: object) -> list[Seen]:
    parameters, optimizer = on_engine(engine, request, **arguments)
    history = []
    for step in range(STEPS):
        before, own = flat_residual(optimizer, parameters), fed(request.compressor, optimizer, engine.rank, step)
        backward(parameters, engine.rank, step)
        optimizer.synchronize()
        history.append(Seen(own, before, flat_residual(optimizer, parameters), flat_gradient(parameters).clone()))
        use(parameters.values())
        optimizer.zero_grad()
    return history


@pytest.mark.parametrize("size", [1, SIZE])
@pytest.mark.parametrize("name", REMEMBERING)
def test_what_is_left_of_the_corrected_gradient_is_remembered(name: str, size: int) -> None:
    """The result is the mean over ranks of gradient + coefficient * residual - the residual that follows, to 1e-5."""
    ranks = run_ranks(size, lambda engine: observe(engine, scheduled(name)))
    nothing_left = name in NOTHING_LEFT or (name in ALONE and size == 1)
    assert nothing_left or any(history[1].before.any() for history in ranks)
    for step, coefficient in enumerate(COEFFICIENTS):
        seen = [history[step] for history in ranks]
        transmitted = [s.own.double() + coefficient * s.before.double() - s.after.double() for s in seen]
        mean = torch.stack(transmitted).mean(0).float()
        torch.testing.assert_close(seen[0].result, mean, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(s.result, seen[0].result) for s in seen)


def test_topk_follows_the_loop_that_anybody_would_write() -> None:
    """One bucket with one parameter, one rank: exactly."""
    shape, compressor = {"w": (40, 9)}, REQUESTS["topk-allgather"].compressor
    parameters = make_parameters(shape)
    optimizer = make_optimizer(parameters, scheduled("topk-allgather"), alone, 0, 1)
    residual = torch.zeros(360)
    for step, coefficient in enumerate(COEFFICIENTS):
        backward(parameters, 0, step)
        optimizer.synchronize()
        corrected = gradient("w", shape["w"], 0, step).reshape(-1) + coefficient * residual
        sent = torch.zeros(360)
        kept = torch.topk(corrected.abs(), round(compressor.sent_ratio * 360)).indices
        sent[kept] = corrected[kept]
        residual = corrected - sent
        assert torch.equal(parameters["w"].grad.reshape(-1), sent)
        assert torch.equal(flat_residual(optimizer, parameters), residual)
        use(parameters.values())
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "int8", "powersgd", *BROUGHT])
def test_every_lane_gives_the_bits_of_the_cpu(name: str, kind: str) -> None:
    expected = run_ranks(SIZE, lambda engine: observe(engine, scheduled(name)))
    found = run_ranks(SIZE, lambda engine: observe(engine, scheduled(name), lanes=PlayedLanes(LANES[kind])))
    for history, other in zip(expected, found, strict=True):
        for seen, again in zip(history, other, strict=True):
            assert torch.equal(seen.result, again.result)
            assert torch.equal(seen.after, again.after)


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "efsign", "powersgd", "int8", *BROUGHT, *OF_GUESTS])
def test_training_resumes_to_the_bit_before_the_coefficient_grows(name: str) -> None:
    """Saved after step 3 of 6; the coefficient is another one before, and another one after."""

    def train(optimizer: ReducingOptimizer, parameters, rank: int, steps: range) -> list[torch.Tensor]:
        for step in steps:
            backward(parameters, rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in parameters.values()]

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, scheduled(name))
        values = train(optimizer, parameters, engine.rank, range(3))
        saved = values, copy.deepcopy(optimizer.state_dict())
        return saved, train(optimizer, parameters, engine.rank, range(3, STEPS))

    def resume(engine: InProcessEngine, saved) -> list[torch.Tensor]:
        parameters, optimizer = on_engine(engine, scheduled(name))
        values, state = saved[engine.rank]
        with torch.no_grad():
            for parameter, value in zip(parameters.values(), values, strict=True):
                parameter.copy_(value)
        optimizer.load_state_dict(state)
        return train(optimizer, parameters, engine.rank, range(3, STEPS))

    ranks = run_ranks(2, body)
    resumed = run_ranks(2, lambda engine: resume(engine, [saved for saved, _ in ranks]))
    for (_, expected), found in zip(ranks, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", ["topk-star", "efsign", "int8", "powersgd"])
def test_a_step_that_is_not_finite_leaves_the_whole_residual(name: str) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, scheduled(name))
        for step in range(2):
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            use(parameters.values())
            optimizer.zero_grad()
        before = flat_residual(optimizer, parameters)
        if engine.rank == 1:
            parameters["second.weight"].register_hook(lambda own: torch.full_like(own, torch.nan))
        backward(parameters, engine.rank, 2)
        optimizer.synchronize()
        assert not of(optimizer).last_step.finite
        assert before.any()
        assert torch.equal(flat_residual(optimizer, parameters), before)

    run_ranks(2, body)


def test_float64_has_none() -> None:
    parameters = make_parameters(dtype=torch.float64)
    optimizer = make_optimizer(parameters, scheduled("topk-allgather"), alone, 0, 1)
    for step in range(3):
        backward(parameters, 0, step)
        optimizer.synchronize()
        torch.testing.assert_close(flat_gradient(parameters), given(0, step))
        optimizer.zero_grad()
    assert not remembered(optimizer.state_dict()["hvd_compress"])["residuals"]


def test_ranks_with_other_coefficients_are_told() -> None:
    def body(engine: InProcessEngine) -> None:
        request = replace(REQUESTS["topk-star"], feedback=FeedbackSchedule(0.5, 0.25, 2 + engine.rank))
        parameters, optimizer = on_engine(engine, request)
        backward(parameters, engine.rank, 0)
        with pytest.raises(ConfigError, match="every=3"):
            optimizer.synchronize()

    run_ranks(2, body)
