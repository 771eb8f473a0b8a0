"""COVAP's interval by the profiled ratio, on the clock that tests hold."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.events.history import Event
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.session import ccr
from hvd_compress.settings import Settings
from tests.clock import Clock, slowed
from tests.harness import backward, flat_residual, make_optimizer, make_parameters

RANKS = 2
SHAPES = {"first": (64, 64), "second": (64, 64), "third": (64, 64)}
BYTES = 3 * 64 * 64 * 4
PASS_S = 0.02
"""Of the whole backward pass."""


def price(ccr: float) -> float:
    """Return the seconds a byte with which collectives take so many backward passes: two ranks send each byte once."""
    return ccr * PASS_S / BYTES


@dataclass
class Job:
    """A rank's training: what is given to it, and what has come back."""

    engine: InProcessEngine
    clock: Clock
    adapt: bool = True

    def __post_init__(self) -> None:
        self.price = [price(2.5)]
        slowed(self.engine, lambda: self.price[0])
        self.parameters, self.optimizer = self.start()

    def start(self) -> tuple[dict[str, torch.nn.Parameter], ReducingOptimizer]:
        parameters = make_parameters(SHAPES)
        for parameter in parameters.values():
            parameter.register_hook(lambda _: self.clock.reach(self.clock() + PASS_S / 3))
        settings = Settings(600, 60, adapt=self.adapt, calibration_s=0.1, check_every=5)
        made = partial(make_optimizer, parameters, Compression.covap("auto"), lambda: self.engine)
        return parameters, made(self.engine.rank, self.engine.world_size, settings=settings)

    def train(self, steps: range) -> list[int]:
        """Return how many elements were sent in each step."""
        sent = []
        for step in steps:
            self.optimizer.zero_grad()
            backward(self.parameters, self.engine.rank, step)
            self.optimizer.step()
            result = torch.cat([p.grad.reshape(-1) for p in self.parameters.values()])
            sent.append(int((result != 0).sum()))
        return sent

    def rest(self) -> None:
        """Wait for what a check has begun: the next optimizer takes the same engine, from another thread."""
        assert self.optimizer._reducer.session._pipeline._is_exchanged()

    @property
    def events(self) -> list[Event]:
        assert of(self.optimizer).controller is not None
        assert of(self.optimizer).controller.history is not None
        return list(of(self.optimizer).controller.history.events)


def test_the_interval_follows_the_ratio(clock: Clock) -> None:
    def body(engine: InProcessEngine) -> tuple[list[int], list[str], list[str]]:
        job = Job(engine, clock)
        sent = job.train(range(20))
        return sent, [e.reason for e in job.events], [d.reason for d in of(job.optimizer).decisions.values()]

    first, second = run_ranks(RANKS, body)
    assert first == second
    sent, (found,), reasons = first
    everything = 3 * 64 * 64
    assert sent[:5] == [everything] * 5, "until the ratio is known"
    assert sum(sent[5:8]) == everything
    assert sent[5:17] == 4 * sent[5:8]
    assert found.startswith("CCR 2.")
    assert found.endswith(": interval 3")
    assert all("CCR 2." in reason for reason in reasons)


def test_another_network_gets_another_interval(clock: Clock) -> None:
    def body(engine: InProcessEngine) -> tuple[list[int], list[str]]:
        job = Job(engine, clock)
        job.train(range(60))
        job.price[0] = price(5.5)
        sent = job.train(range(60, 200))
        return sent, [f"{event.kind}: {event.reason}" for event in job.events]

    first, second = run_ranks(RANKS, body)
    assert first == second
    sent, events = first
    assert [event.split(":")[0] for event in events] == ["ccr", "network", "ccr"]
    assert events[-1].endswith(": interval 6")
    assert sum(sent[-6:]) == 3 * 64 * 64


def test_a_resumed_training_sends_what_the_uninterrupted_one_does(clock: Clock) -> None:
    def body(engine: InProcessEngine) -> tuple[list[int], list[int], bool, str]:
        job = Job(engine, clock)
        job.train(range(14))
        state = copy.deepcopy(job.optimizer.state_dict())
        going_on = job.train(range(14, 24))
        left = flat_residual(job.optimizer, job.parameters)
        job.rest()
        job.parameters, job.optimizer = job.start()
        job.optimizer.load_state_dict(state)
        resumed = job.train(range(14, 24))
        same = torch.equal(left, flat_residual(job.optimizer, job.parameters))
        return going_on, resumed, same, state["hvd_compress"]["choice"]

    for going_on, resumed, same, choice in run_ranks(RANKS, body):
        assert resumed == going_on
        assert same
        assert json.loads(choice)["policy"] == "covap"


def test_nothing_is_measured_without_adapting(clock: Clock) -> None:
    def body(engine: InProcessEngine) -> tuple[list[int], set[str]]:
        job = Job(engine, clock, adapt=False)
        sent = job.train(range(8))
        return sent, {d.reason for d in of(job.optimizer).decisions.values()}

    for sent, reasons in run_ranks(RANKS, body):
        assert sum(sent[:4]) == sum(sent[4:]) == 3 * 64 * 64
        assert any("nothing is measured" in reason for reason in reasons)


@pytest.mark.parametrize(
    "choice",
    [
        *("[1]", "{", json.dumps({"policy": "covap"}), json.dumps({"policy": "covap", "ccr": -1.0, "level_s": None})),
        *(json.dumps({"policy": "covap", "ccr": 2.0, "level_s": level}) for level in (0.0, "1")),
    ],
)
def test_what_is_no_choice_is_an_error_of_all_ranks(choice: str, clock: Clock) -> None:
    def body(engine: InProcessEngine) -> None:
        job = Job(engine, clock)
        job.train(range(2))
        state = copy.deepcopy(job.optimizer.state_dict())
        state["hvd_compress"]["choice"] = choice
        job.rest()
        job.parameters, job.optimizer = job.start()
        job.optimizer.load_state_dict(state)
        with pytest.raises(ConfigError, match="the choice in this state of a compression is not valid"):
            job.train(range(2, 3))

    run_ranks(RANKS, body)


@pytest.mark.parametrize("other", [Compression.auto(), Compression.covap(3)])
def test_a_choice_of_another_policy_is_not_gone_on_with(other: object, clock: Clock) -> None:
    """In either direction."""

    def body(engine: InProcessEngine) -> bool:
        job = Job(engine, clock)
        job.train(range(30))
        job.rest()
        settings = Settings(600, 60, adapt=True, calibration_s=0.1)
        parameters = make_parameters(SHAPES)
        changed = make_optimizer(parameters, other, lambda: engine, engine.rank, RANKS, settings=settings)  # type: ignore[arg-type]
        changed.load_state_dict(copy.deepcopy(job.optimizer.state_dict()))
        for step in range(30, 70):
            changed.zero_grad()
            backward(parameters, engine.rank, step)
            changed.step()
        state = copy.deepcopy(changed.state_dict())
        job.rest()
        job.parameters, job.optimizer = job.start()
        job.optimizer.load_state_dict(state)
        job.train(range(70, 90))
        return [event.kind for event in job.events][:1] == ["ccr"]

    assert run_ranks(RANKS, body) == [True] * RANKS


def test_one_rank_filters_nothing() -> None:
    def body(engine: InProcessEngine) -> set[str]:
        parameters = make_parameters(SHAPES)
        made = make_optimizer(parameters, Compression.covap("auto"), lambda: engine, 0, 1)
        for step in range(3):
            made.zero_grad()
            backward(parameters, 0, step)
            made.step()
            assert all(bool(parameter.grad.any()) for parameter in parameters.values())
        return {each.reason for each in of(made).decisions.values()}

    assert all("one rank exchanges nothing" in reason for reason in run_ranks(1, body)[0])


def test_a_model_without_one_clock_gets_the_interval_that_is_not_measured(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def several(parameters: object) -> torch.device:
        raise UnsupportedError("its parameters lie on several devices")

    monkeypatch.setattr(ccr, "device_of", several)

    def body(engine: InProcessEngine) -> tuple[list[int], set[str]]:
        job = Job(engine, clock)
        with pytest.raises(UnsupportedError, match="lie on several devices"):
            of(job.optimizer).profile_ccr()
        sent = job.train(range(8))
        return sent, {each.reason for each in of(job.optimizer).decisions.values()}

    for sent, reasons in run_ranks(RANKS, body):
        assert sum(sent[:4]) == sum(sent[4:]) == 3 * 64 * 64
        assert any("lie on several devices" in reason for reason in reasons)


def test_hooks_of_a_profile_end_with_the_exchanges(clock: Clock) -> None:
    def body(engine: InProcessEngine) -> bool:
        job = Job(engine, clock)
        job.train(range(3))
        session = job.optimizer._reducer.session
        assert session.services.ccr.holds_back
        session.fail(KeyboardInterrupt())
        return session.services.ccr.holds_back

    assert run_ranks(RANKS, body) == [False] * RANKS
