"""A step that a program leaves out: what its exchange has left is forgotten, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import UsageError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.frontends.unused import UnusedResult
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.harness import (
    COMPRESSORS,
    FIRST_NAMES,
    SHAPES,
    Scaler,
    backward,
    gradient,
    make_optimizer,
    make_parameters,
    remembered,
)

REQUESTS = {
    **{name: Request(COMPRESSORS[name]) for name in FIRST_NAMES},
    **dict(brought("REMEMBERING")),
}


Program = Callable[[ReducingOptimizer, Mapping[str, torch.nn.Parameter], int], None]


def spike(name: str, shape: tuple[int, ...], rank: int, step: int) -> torch.Tensor:
    return 1000 * gradient(name, shape, rank, step)


def train(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int, steps: range) -> None:
    for step in steps:
        backward(parameters, rank, step)
        optimizer.step()
        optimizer.zero_grad()


def kept(optimizer: ReducingOptimizer) -> dict[str, torch.Tensor]:
    """All that compression remembers."""
    state: Mapping[str, Any] = remembered(optimizer.state_dict()["hvd_compress"])
    own = {f"{kind} {name}": each for kind, found in state["states"].items() for name, each in found.items()}
    return {**state["residuals"], **own}


def is_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("after", [1, 2], ids=["the first step", "later"])
@pytest.mark.parametrize("name", REQUESTS)
def test_what_it_has_left_is_forgotten(name: str, after: int) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, rank = make_parameters(SHAPES), engine.rank
        optimizer = make_optimizer(parameters, REQUESTS[name], lambda: engine, rank, engine.world_size)
        train(optimizer, parameters, rank, range(after))
        before = kept(optimizer)
        backward(parameters, rank, after, spike)
        optimizer.synchronize()
        assert not before or not is_same(kept(optimizer), before)
        optimizer.zero_grad()
        of(optimizer).drop_step()
        assert is_same(kept(optimizer), before)
        of(optimizer).drop_step()
        assert is_same(kept(optimizer), before), "it reaches one step back"
        backward(parameters, rank, after + 1)
        optimizer.synchronize()
        largest = max(float(parameter.grad.abs().max()) for parameter in parameters.values())
        assert largest < 100, "nothing of the spike comes back"

    run_ranks(3, body)


def left_out(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int, step: int) -> None:
    """A program drops a step, and does not say so."""
    backward(parameters, rank, step, spike)
    optimizer.synchronize()
    optimizer.zero_grad(set_to_none=step % 2 == 0)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("after", [1, 3], ids=["after the first step", "later"])
@pytest.mark.parametrize("size", [2, 3])
def test_it_is_noticed_without_a_call(name: str, after: int, size: int) -> None:
    def body(engine: InProcessEngine, says: bool) -> dict[str, torch.Tensor]:
        parameters, rank = make_parameters(SHAPES), engine.rank
        optimizer = make_optimizer(parameters, REQUESTS[name], lambda: engine, rank, engine.world_size, momentum=0.9)
        train(optimizer, parameters, rank, range(after))
        for step in (after, after + 1):  # one after the other
            left_out(optimizer, parameters, rank, step)
            if says:
                of(optimizer).drop_step()
        train(optimizer, parameters, rank, range(after + 2, after + 4))
        return {**kept(optimizer), **{name: parameter.detach() for name, parameter in parameters.items()}}

    said, noticed = (run_ranks(size, lambda engine, says=says: body(engine, says)) for says in (True, False))
    assert all(map(is_same, noticed, said))


def accumulates(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int) -> None:
    """Several exchanges add to one gradient."""
    for step in (2, 3):
        backward(parameters, rank, step)
        optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


def clips_and_accumulates(
    optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int
) -> None:
    for step in (2, 3):
        backward(parameters, rank, step)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()


def writes_itself(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int) -> None:
    """No optimizer takes the step, and torch counts no write."""
    for step in (2, 3):
        backward(parameters, rank, step)
        optimizer.synchronize()
        for parameter in parameters.values():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        optimizer.zero_grad()


def has_its_own_optimizer(
    optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int
) -> None:
    """Of those kernels of torch that count no write."""
    own = torch.optim.SGD(list(parameters.values()), lr=0.1, fused=True)
    for step in (2, 3):
        backward(parameters, rank, step)
        optimizer.synchronize()
        own.step()
        own.zero_grad()


def combines(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int) -> None:
    """Gradients of two losses, put aside, become one."""
    _combine(optimizer, parameters, rank, lambda parameter, other: setattr(parameter, "grad", parameter.grad + other))


def combines_in_place(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int) -> None:
    _combine(optimizer, parameters, rank, lambda parameter, other: parameter.grad.add_(other))


def _combine(
    optimizer: ReducingOptimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    rank: int,
    add: Callable[[torch.nn.Parameter, torch.Tensor], object],
) -> None:
    for pair in ((2, 3), (4, 5)):
        for step in pair:
            optimizer.zero_grad()
            backward(parameters, rank, step)
            optimizer.synchronize()
            if step == pair[0]:
                first = [parameter.grad.clone() for parameter in parameters.values()]
        for parameter, other in zip(parameters.values(), first, strict=True):
            add(parameter, other)
        with optimizer.skip_synchronize():
            optimizer.step()


def adds_up_elsewhere(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int) -> None:
    """Gradients add up beside the parameters, which are written to by hand."""
    for pair in ((2, 3), (4, 5)):
        sums = [torch.zeros_like(parameter) for parameter in parameters.values()]
        for step in pair:
            backward(parameters, rank, step)
            optimizer.synchronize()
            for sum_, parameter in zip(sums, parameters.values(), strict=True):
                sum_ += parameter.grad
                parameter.grad = None
        with torch.no_grad():
            for sum_, parameter in zip(sums, parameters.values(), strict=True):
                parameter -= 0.1 * sum_


def puts_aside(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int) -> None:
    """Other gradients are looked at meanwhile, which are not exchanged."""
    for step in (2, 3):
        backward(parameters, rank, step)
        optimizer.synchronize()
        held = [parameter.grad for parameter in parameters.values()]
        optimizer.zero_grad()
        optimizer._reducer._unused.comes()  # as the hook of a backward pass that exchanges nothing
        for parameter, gradient_ in zip(parameters.values(), held, strict=True):
            parameter.grad = gradient_
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


Times = tuple[int, int]
"""How often a result is dropped: at first, and by a program that has stepped before."""
USED: dict[Program, Times] = {
    accumulates: (0, 0),
    clips_and_accumulates: (0, 0),
    writes_itself: (0, 0),
    has_its_own_optimizer: (0, 0),
    combines: (0, 1),
    combines_in_place: (0, 1),
    adds_up_elsewhere: (0, 1),
    puts_aside: (0, 0),
}


@pytest.mark.parametrize("known", [0, 2], ids=["at first", "later"])
@pytest.mark.parametrize("program", USED)
def test_a_result_that_was_used_is_not_taken_back(program: Program, known: int) -> None:
    """At most once, where a program that was known to step by each result begins to keep several."""
    dropped: list[int] = []

    def body(engine: InProcessEngine) -> None:
        parameters, rank = make_parameters(SHAPES), engine.rank
        optimizer = make_optimizer(parameters, Request(COMPRESSORS["topk"]), lambda: engine, rank, 2)
        train(optimizer, parameters, rank, range(known))
        session = optimizer._reducer.session
        optimizer._reducer._unused._drop = lambda: (dropped.append(rank), session.drop_step())
        program(optimizer, parameters, rank)
        optimizer.zero_grad()
        backward(parameters, rank, 6)
        optimizer.synchronize()

    run_ranks(2, body)
    assert sorted(dropped) == sorted([0, 1] * USED[program][bool(known)])


def test_steps_that_are_captured_are_not_seen() -> None:
    parameters = make_parameters(SHAPES)
    dropped: list[None] = []
    unused = UnusedResult(parameters, lambda: dropped.append(None))

    def step(*captured: bool) -> None:
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        unused.exchanged()
        for each in captured:
            unused.take_step(each)
        for parameter in parameters.values():
            parameter.grad = None
        unused.begins()

    step(False)
    step()
    assert len(dropped) == 1, "nobody has stepped"
    step(False, True)
    step()
    assert len(dropped) == 1


def test_in_mixed_precision_it_is_forgotten_in_the_units_of_today() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, rank, scaler = make_parameters(SHAPES), engine.rank, Scaler(8.0)
        optimizer = make_optimizer(parameters, Request(COMPRESSORS["topk"]), lambda: engine, rank, 2)
        of(optimizer).follow_loss_scale(scaler)
        train(optimizer, parameters, rank, range(2))
        before = kept(optimizer)
        backward(parameters, rank, 2, spike)
        optimizer.synchronize()
        scaler.scale = 4.0
        kept(optimizer)  # saved in the new units
        optimizer.zero_grad()
        of(optimizer).drop_step()
        assert is_same(kept(optimizer), {name: each / 2 for name, each in before.items()})

    run_ranks(2, body)


def test_a_checkpoint_that_is_loaded_stays() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, rank = make_parameters(SHAPES), engine.rank
        optimizer = make_optimizer(parameters, Request(COMPRESSORS["powersgd"]), lambda: engine, rank, 2)
        train(optimizer, parameters, rank, range(2))
        saved = optimizer.state_dict()
        train(optimizer, parameters, rank, range(2, 4))
        optimizer.load_state_dict(saved)
        before = kept(optimizer)
        of(optimizer).drop_step()
        assert is_same(kept(optimizer), before)

    run_ranks(2, body)


def test_within_a_step_it_is_refused() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters = make_parameters(SHAPES)
        optimizer = make_optimizer(parameters, Request(COMPRESSORS["int4"]), lambda: engine, engine.rank, 2)
        of(optimizer).drop_step()  # of nothing
        train(optimizer, parameters, engine.rank, range(2))
        backward(parameters, engine.rank, 2)
        with pytest.raises(UsageError, match=r"drop_step\(\)"):
            of(optimizer).drop_step()
        optimizer.step()

    run_ranks(2, body)
