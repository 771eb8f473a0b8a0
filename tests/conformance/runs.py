"""One training of a case, and what it shows: several properties are read off the same run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.decision import Decision
from hvd_compress.settings import Settings
from tests.conformance.cases import Case
from tests.harness import (
    SHAPES,
    Draw,
    backward,
    flat_gradient,
    flat_residual,
    gradient,
    make_optimizer,
    make_parameters,
    place,
)

STEPS, SAVED = 4, 2
"""Of a run; and after so many its state is saved."""

MOMENTUM = 0.5
"""Of SGD: its buffers are in the saved state, too."""

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Step:
    """One step of one rank, all parameters in one flat tensor.

    `sent_bytes` and `sent_messages` are what this rank handed to the engine, `counted_bytes` the mean over ranks by the
    textbook.
    """

    own: torch.Tensor
    residual_before: torch.Tensor
    residual_after: torch.Tensor
    result: torch.Tensor
    finite: bool
    sent_bytes: int
    sent_messages: int
    counted_bytes: int


@dataclass(frozen=True)
class Rank:
    """What one rank has seen.

    Attributes:
        saved: its parameters and state after SAVED steps; `trained` those at the end.
        decisions: by the names of the parameters of a bucket.
    """

    steps: list[Step]
    saved: tuple[Values, dict[str, Any]]
    trained: Values
    decisions: Mapping[tuple[str, ...], Decision]


Run = list[Rank]
"""By rank."""


def run(case: Case, **arguments: Any) -> Run:
    """Train a case with gradients that differ between ranks and steps; the arguments are those of train()."""
    return run_ranks(case.size, lambda engine: train(engine, case, **arguments))


def resume(case: Case, ranks: Run) -> list[Values]:
    """Return the parameters of each rank where other processes go on with what was saved."""

    def body(engine: InProcessEngine) -> Values:
        parameters, optimizer = connect(engine, case)
        values, state = ranks[engine.rank].saved
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(values[name])
        optimizer.load_state_dict(copy.deepcopy(state))
        for step in range(SAVED, STEPS):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return values_of(parameters)

    return run_ranks(case.size, body)


def train(
    engine: InProcessEngine,
    case: Case,
    steps: int = STEPS,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    draw: Draw = gradient,
    **arguments: Any,
) -> Rank:
    """Train one rank, and keep everything."""
    parameters, optimizer = connect(engine, case, shapes, **arguments)
    after = flat_residual(optimizer, parameters)
    saved: tuple[Values, dict[str, Any]] = {}, {}
    history = []
    for step in range(steps):
        before, sent = after, (engine.sent_bytes, engine.sent_messages)
        own = [draw(name, tuple(p.shape), engine.rank, step).reshape(-1) for name, p in parameters.items()]
        backward(parameters, engine.rank, step, draw)
        optimizer.synchronize()
        after, report = flat_residual(optimizer, parameters), of(optimizer).last_step
        assert report is not None
        result = flat_gradient(parameters).clone()
        moved = engine.sent_bytes - sent[0], engine.sent_messages - sent[1]
        history.append(Step(torch.cat(own), before, after, result, report.finite, *moved, report.sent_bytes))
        if report.finite:
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.zero_grad()
        if step + 1 == SAVED:
            saved = values_of(parameters), copy.deepcopy(optimizer.state_dict())
    return Rank(history, saved, values_of(parameters), dict(of(optimizer).decisions))


def connect(
    engine: InProcessEngine, case: Case, shapes: Mapping[str, tuple[int, ...]] = SHAPES, **arguments: Any
) -> tuple[dict[str, torch.nn.Parameter], ReducingOptimizer]:
    """Return parameters and their optimizer, in three buckets with SHAPES."""
    place(engine, case.hosts)
    parameters = make_parameters(shapes)
    arguments = {"settings": Settings(600, 60, check_every=0), "momentum": MOMENTUM, **arguments}
    optimizer = make_optimizer(parameters, case.request, lambda: engine, engine.rank, engine.world_size, **arguments)
    return parameters, optimizer


def values_of(parameters: Mapping[str, torch.nn.Parameter]) -> Values:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean over ranks, summed in double precision, as fp32."""
    return torch.stack(tensors).double().mean(0).float()
