"""What is profiled of a running training, on the clock that tests hold: the ratio, and nothing of what is trained."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.request.request import Request
from hvd_compress.services.ccr import Ccr
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.clock import Clock, slowed
from tests.harness import backward, on_engine
from tests.played_clock import nobody_watches as nobody_watches

RANKS, STEPS = 3, 12
PASS_S = 0.004
"""Of each parameter, of which there are some."""


class Together:
    """Lets ranks begin their backward passes at one moment.

    All who watch in this process see a pass begin, ranks in other threads too: it must be as good as their own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._barrier, self._now_s = clock, threading.Barrier(RANKS, timeout=60), [0.0] * RANKS

    def begin(self, rank: int) -> None:
        self._now_s[rank] = self._clock()
        self._barrier.wait()
        self._clock.reach(max(self._now_s))
        self._barrier.wait()


def trained(
    engine: InProcessEngine, clock: Clock, together: Together, late: float, profiled: bool
) -> tuple[Ccr | None, torch.Tensor, int]:
    """Train; rank 1 takes `late` times as long for its backward pass."""
    slowed(engine, lambda: 1e-6)
    parameters, optimizer = on_engine(engine, Compression.dense())
    factor = late if engine.rank == 1 else 1.0
    for parameter in parameters.values():
        parameter.register_hook(lambda _: clock.reach(clock() + factor * PASS_S))
    for step in range(STEPS):
        if profiled and step == 4:
            of(optimizer).profile_ccr(3)
        optimizer.zero_grad()
        together.begin(engine.rank)
        backward(parameters, engine.rank, step)
        optimizer.step()
    return of(optimizer).ccr, torch.cat([p.detach().reshape(-1) for p in parameters.values()]), len(parameters)


def test_a_late_rank_changes_the_backward_pass_and_not_the_collectives(clock: Clock) -> None:
    together = Together(clock)
    found, late = (
        run_ranks(RANKS, lambda engine, by=by: trained(engine, clock, together, by, True)) for by in (1, 1.3)
    )
    (even, _, parameters), (uneven, _, _) = found[0], late[0]
    assert even is not None
    assert uneven is not None
    assert [each[0] for each in found] == [even] * RANKS, "all ranks have found the same"
    assert [each[0] for each in late] == [uneven] * RANKS
    assert even.backward_s == pytest.approx(parameters * PASS_S)
    assert uneven.backward_s == pytest.approx(1.3 * parameters * PASS_S)
    assert uneven.communicate_s == pytest.approx(even.communicate_s, rel=0.01)
    assert even.naive == pytest.approx(even.ratio, rel=0.01)
    assert uneven.naive_s - uneven.communicate_s > 5 * (even.naive_s - even.communicate_s), "waits of the others"
    assert even.steps == 3


def test_what_is_trained_is_the_same(clock: Clock) -> None:
    together = Together(clock)
    first, second = (run_ranks(RANKS, lambda e, on=on: trained(e, clock, together, 1, on)) for on in (False, True))
    for (nothing, plain, _), (found, profiled, _) in zip(first, second, strict=True):
        assert nothing is None
        assert found is not None
        assert torch.equal(plain, profiled)


def test_no_gradient_from_a_backward_pass_is_no_ratio() -> None:
    def body(engine: InProcessEngine) -> Ccr | None:
        parameters, optimizer = on_engine(engine, Compression.dense())
        for step in range(8):
            if step == 2:
                of(optimizer).profile_ccr(2)
            for parameter in parameters.values():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return of(optimizer).ccr

    for found in run_ranks(2, body):
        assert found is not None
        assert math.isinf(found.ratio)


@pytest.mark.parametrize("steps", [0, -1, True, 2.0, "3"])
def test_steps_are_a_whole_number(steps: object) -> None:
    def body(engine: InProcessEngine) -> None:
        _, optimizer = on_engine(engine, Compression.dense())
        with pytest.raises(ConfigError, match="is not a whole number"):
            of(optimizer).profile_ccr(steps)  # type: ignore[arg-type]

    run_ranks(1, body)


def test_buckets_are_held_back_while_it_is_profiled() -> None:
    def body(engine: InProcessEngine) -> list[bool]:
        parameters, optimizer = on_engine(engine, Compression.dense())
        beside = []
        for step in range(8):
            if step == 3:
                of(optimizer).profile_ccr(2)
            backward(parameters, engine.rank, step)
            beside.append(any(optimizer._reducer.session.buckets.is_launched(n) for n in range(3)) if step else False)
            optimizer.step()
            optimizer.zero_grad()
        return beside

    launched = [False, True, True, True, False, False, True, True]  # nothing is launched before buckets are known
    assert run_ranks(2, body) == [launched] * 2


@pytest.mark.parametrize("request_", [Compression.auto("dense"), *dict(brought("PROFILING")).values()])
def test_what_is_profiled_tells_a_policy_nothing_of_its_network(request_: Request, clock: Clock) -> None:
    """Exchanges that begin behind the backward pass take other steps than those beside it."""

    def body(engine: InProcessEngine) -> tuple[list[str], int, int]:
        slowed(engine, lambda: 1e-6)
        settings = Settings(600, 60, adapt=True, calibration_s=0.1)
        parameters, optimizer = on_engine(engine, request_, settings=settings)
        for parameter in parameters.values():
            parameter.register_hook(lambda _: clock.reach(clock() + PASS_S))
        for step in range(150):
            if step in (1, 60):
                of(optimizer).profile_ccr(20)
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        events = [] if of(optimizer).controller is None else [e.kind for e in of(optimizer).controller.history.events]
        return events, of(optimizer).ccr.steps, len(parameters)

    first, second = run_ranks(2, body)
    assert first == second
    kinds, steps, _ = first
    assert "network" not in kinds
    assert steps == 20, "what a program asks for is not what a policy wants for itself"
