"""A choice in a checkpoint: who goes on with it neither measures nor searches, until the network changes."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.clock import slowed
from tests.harness import backward, make_optimizer, make_parameters
from tests.unit.policies.auto.test_policy import SHAPES, Parameters

pytestmark = pytest.mark.usefixtures("clock")

RANKS, BEFORE, AFTER = 2, 30, 10
REQUESTS = {"auto": Compression.auto(), "topk": Compression.topk(0.05), "int4": Compression.int4()}


def start(engine: InProcessEngine, request: Request, threshold: int = 600) -> tuple[Parameters, ReducingOptimizer]:
    parameters = make_parameters(SHAPES)
    settings = Settings(threshold, 60, adapt=True, calibration_s=0.1, check_every=5)
    made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
    return parameters, made


def ways(optimizer: ReducingOptimizer) -> tuple[tuple[str, str], ...]:
    return tuple((str(each.compressor), str(each.path)) for each in of(optimizer).decisions.values())


def train(
    engine: InProcessEngine, parameters: Parameters, optimizer: ReducingOptimizer, steps: range
) -> list[tuple[tuple[str, str], ...]]:
    """Return by what the buckets travelled."""
    used = []
    for step in steps:
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        optimizer.step()
        used.append(ways(optimizer))
    return used


def bits(parameters: Parameters) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])


@pytest.mark.parametrize("name", REQUESTS)
def test_a_resumed_training_is_the_uninterrupted_one_to_the_bit(name: str) -> None:
    def body(engine: InProcessEngine):
        slowed(engine, lambda: 1e-6)
        parameters, optimizer = start(engine, REQUESTS[name])
        train(engine, parameters, optimizer, range(BEFORE))
        state, values = copy.deepcopy(optimizer.state_dict()), {n: p.detach().clone() for n, p in parameters.items()}
        known = ways(optimizer)
        train(engine, parameters, optimizer, range(BEFORE, BEFORE + AFTER))
        expected = bits(parameters)
        again, resumed = start(engine, REQUESTS[name])
        for n, parameter in again.items():
            parameter.data.copy_(values[n])
        resumed.load_state_dict(state)
        used = train(engine, again, resumed, range(BEFORE, BEFORE + AFTER))
        choices = (
            [e.step for e in of(resumed).controller.history if e.kind == "choice"] if of(resumed).controller else []
        )
        reasons = {d.reason for d in of(resumed).decisions.values()}
        return torch.equal(bits(again), expected), set(used), known, choices, reasons

    for same, used, known, choices, reasons in run_ranks(RANKS, body):
        assert same
        assert used == {known}
        assert len(set(choices)) <= 1
        if choices:
            assert all(reason.endswith(", as in the checkpoint") for reason in reasons)


def test_a_network_that_changes_later_is_noticed() -> None:
    def body(engine: InProcessEngine) -> tuple[bool, str]:
        price = [1e-8]
        slowed(engine, lambda: price[0])
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        state = copy.deepcopy(optimizer.state_dict())
        again, resumed = start(engine, Compression.auto())
        resumed.load_state_dict(state)
        train(engine, again, resumed, range(BEFORE, BEFORE + 60))
        price[0] = 2e-6
        train(engine, again, resumed, range(BEFORE + 60, BEFORE + 200))
        kinds = [event.kind for event in of(resumed).controller.history]
        return "network" in kinds, next(iter(of(resumed).decisions.values())).reason

    first, second = run_ranks(RANKS, body)
    assert first == second
    assert first[0]
    assert "checkpoint" not in first[1]


def test_another_network_than_that_of_the_choice_is_noticed() -> None:
    """The checkpoint says what exchanges took."""

    def body(engine: InProcessEngine) -> tuple[list[str], str]:
        price = [1e-8]
        slowed(engine, lambda: price[0])
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        state = copy.deepcopy(optimizer.state_dict())
        price[0] = 2e-6
        again, resumed = start(engine, Compression.auto())
        resumed.load_state_dict(state)
        train(engine, again, resumed, range(BEFORE, BEFORE + 100))
        return [e.kind for e in of(resumed).controller.history], next(iter(of(resumed).decisions.values())).reason

    first, second = run_ranks(RANKS, body)
    assert first == second
    assert "network" in first[0]
    assert "checkpoint" not in first[1]


def test_what_rank_0_alone_has_loaded_counts() -> None:
    """As in Horovod's examples, where it broadcasts parameters and the optimizer's state."""

    def body(engine: InProcessEngine) -> tuple[bool, set[str]]:
        slowed(engine, lambda: 1e-6)
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        again, resumed = start(engine, Compression.auto())
        if engine.rank == 0:
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(engine, again, resumed, range(BEFORE, BEFORE + 3))
        assert of(resumed).controller is not None
        return of(resumed).controller.settled, {d.reason.rpartition(", ")[2] for d in of(resumed).decisions.values()}

    assert run_ranks(RANKS, body) == [(True, {"as in the checkpoint"})] * RANKS


@pytest.mark.filterwarnings("ignore:residuals of rank 0 of 2 are not loaded on rank")
def test_with_other_ranks_it_searches() -> None:
    states = []

    def before(engine: InProcessEngine) -> None:
        slowed(engine, lambda: 1e-6)
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        if engine.rank == 0:
            states.append(copy.deepcopy(optimizer.state_dict()))

    def after(engine: InProcessEngine) -> tuple[bool, bool]:
        slowed(engine, lambda: 1e-6)
        again, resumed = start(engine, Compression.auto())
        resumed.load_state_dict(copy.deepcopy(states[0]))
        train(engine, again, resumed, range(BEFORE, BEFORE + 3))
        searches = not of(resumed).controller.settled
        train(engine, again, resumed, range(BEFORE + 3, BEFORE + 30))
        return searches, of(resumed).controller.settled

    run_ranks(RANKS, before)
    assert run_ranks(RANKS + 1, after) == [(True, True)] * (RANKS + 1)


def test_with_other_buckets_it_searches() -> None:
    def body(engine: InProcessEngine) -> bool:
        slowed(engine, lambda: 1e-6)
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        again, resumed = start(engine, Compression.auto(), threshold=1 << 20)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(engine, again, resumed, range(BEFORE, BEFORE + 3))
        assert not of(resumed).controller.settled
        train(engine, again, resumed, range(BEFORE + 3, BEFORE + 30))
        return of(resumed).controller.settled

    assert run_ranks(RANKS, body) == [True] * RANKS


OTHERS = {"dense": Compression.auto("dense"), "int8": Compression.int8(), "topk": Compression.topk(0.05)}


@pytest.mark.parametrize("name", OTHERS)
def test_a_choice_that_another_request_does_not_allow_is_not_gone_on_with(name: str) -> None:
    """int3 was chosen; who asks for something else now gets that."""

    def body(engine: InProcessEngine) -> tuple[set[str], set[str]]:
        slowed(engine, lambda: 5e-6)
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        chosen = {sent for sent, _ in ways(optimizer)}
        again, resumed = start(engine, OTHERS[name])
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        used = train(engine, again, resumed, range(BEFORE, BEFORE + AFTER))
        return chosen, {sent for step in used for sent, _ in step}

    for chosen, used in run_ranks(RANKS, body):
        assert any("bits=3" in sent for sent in chosen)
        assert not any("bits=3" in sent for sent in used)


def test_ranks_that_come_with_others_search_together() -> None:
    def body(engine: InProcessEngine) -> tuple[bool, bool]:
        slowed(engine, lambda: 1e-6)
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(BEFORE))
        state = copy.deepcopy(optimizer.state_dict())
        if engine.rank:
            state["hvd_compress"]["choice"] = ""
        again, resumed = start(engine, Compression.auto())
        resumed.load_state_dict(state)
        train(engine, again, resumed, range(BEFORE, BEFORE + 3))
        before = of(resumed).controller.settled
        train(engine, again, resumed, range(BEFORE + 3, BEFORE + 30))
        return before, of(resumed).controller.settled

    assert run_ranks(RANKS, body) == [(False, True)] * RANKS


PLAN = {"version": 1, "world_size": 2, "default": {"compressor": {"name": "dense"}, "collective": "dense"}}
HOSTILE = [
    *("{}", "[", "[1]", "3", "null"),
    json.dumps({"arm": "int4", "exchanging_s": 0.1, "plan": {"version": 9}}),
    *(
        json.dumps({"arm": "int4", "exchanging_s": seconds, "plan": PLAN})
        for seconds in (-1.0, 0.0, float("nan"), "1", None)
    ),
    json.dumps({"arm": "int4", "exchanging_s": float("inf"), "plan": PLAN}),
    json.dumps({"arm": "int4", "plan": PLAN}),
]


@pytest.mark.parametrize("choice", HOSTILE)
def test_what_is_no_choice_is_an_error_of_all_ranks(choice: str) -> None:
    def body(engine: InProcessEngine) -> bool:
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(3))
        state = copy.deepcopy(optimizer.state_dict())
        state["hvd_compress"]["choice"] = choice
        again, resumed = start(engine, Compression.auto())
        resumed.load_state_dict(state)
        with pytest.raises(ConfigError, match=r"the choice in this state of a compression is not valid"):
            train(engine, again, resumed, range(3, 4))
        return True

    assert run_ranks(RANKS, body) == [True] * RANKS


@pytest.mark.filterwarnings("error")
def test_a_file_of_rank_0_without_residuals_is_loaded_in_silence() -> None:
    """As programs save that let rank 0 do it: nothing is lost where dense was chosen."""
    states = []

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine, Compression.dense())
        train(engine, parameters, optimizer, range(3))
        if engine.rank == 0:
            states.append(copy.deepcopy(optimizer.state_dict()))

    def again(engine: InProcessEngine) -> bool:
        parameters, optimizer = start(engine, Compression.dense())
        optimizer.load_state_dict(copy.deepcopy(states[0]))
        train(engine, parameters, optimizer, range(3, 5))
        return True

    run_ranks(RANKS, body)
    assert run_ranks(RANKS, again) == [True] * RANKS


def test_a_choice_is_text() -> None:
    def body(engine: InProcessEngine) -> bool:
        parameters, optimizer = start(engine, Compression.auto())
        train(engine, parameters, optimizer, range(3))
        assert optimizer.state_dict()["hvd_compress"]["choice"] == "", "it still tries"
        state = copy.deepcopy(optimizer.state_dict())
        state["hvd_compress"]["choice"] = 3
        with pytest.raises(ConfigError, match="choice"):
            start(engine, Compression.auto())[1].load_state_dict(state)
        return True

    assert run_ranks(RANKS, body) == [True] * RANKS
