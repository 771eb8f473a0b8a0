"""Compression.auto() in whole steps: what is chosen is the same on all ranks, and what was not sent is not lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.front.optimizer.optimizer import ReducingOptimizer
from hvd_compress.settings import Settings
from tests.harness import alone, backward, make_optimizer, make_parameters, remembered

RANKS = 3
SHAPES = {"large": (64, 64), "small": (5,), "larger": (96, 64)}
STEPS = 40

Parameters = dict[str, torch.nn.Parameter]


def slowed(engine: InProcessEngine, seconds_a_byte: Callable[[], float]) -> None:
    """Let collectives take time by their bytes."""
    for verb in ("_allreduce", "_allgather", "_alltoall"):
        call = getattr(engine, verb)

        def slow(
            tensor: torch.Tensor | Sequence[torch.Tensor], *arguments: object, call: Callable[..., object] = call
        ) -> object:
            given = tensor if isinstance(tensor, torch.Tensor) else torch.cat(list(tensor))
            time.sleep(seconds_a_byte() * given.numel() * given.element_size())
            return call(tensor, *arguments)

        setattr(engine, verb, slow)


def start(engine: InProcessEngine, quality: str = "near", adapt: bool = True) -> tuple[Parameters, ReducingOptimizer]:
    parameters = make_parameters(SHAPES)
    settings = Settings(600, 60, adapt=adapt, calibration_s=0.2, check_every=5)
    request = Compression.auto(quality)  # type: ignore[arg-type]
    made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
    return parameters, made


def train(engine: InProcessEngine, parameters: Parameters, optimizer: ReducingOptimizer, steps: range) -> list[str]:
    """Return by what the largest bucket travelled in each step."""
    sent = []
    for step in steps:
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        sent.append(str(next((d.compressor for n, d in optimizer.decisions.items() if "larger" in n), "")))
        optimizer.step()
    return sent


def test_a_slow_network_gets_fewer_bytes() -> None:
    def body(engine: InProcessEngine) -> tuple[list[str], str, torch.Tensor]:
        slowed(engine, lambda: 1e-6)
        parameters, optimizer = start(engine)
        sent = train(engine, parameters, optimizer, range(STEPS))
        assert optimizer.controller.settled
        reason = next(d.reason for n, d in optimizer.decisions.items() if "larger" in n)
        return sent, reason, torch.cat([p.detach().reshape(-1) for p in parameters.values()])

    first, *others = run_ranks(RANKS, body)
    sent, reason, values = first
    for other in others:
        assert other[:2] == (sent, reason)
        assert torch.equal(other[2], values)
    assert "bits=4" in sent[-1]
    assert "int4 by " in reason
    assert "a step not hidden; " in reason
    assert "dense " in reason
    assert len(set(sent[22:])) == 1, "a search takes at most 20 steps"


def test_nothing_is_compressed_where_nothing_is_waited_for() -> None:
    """And what was not sent by those that were tried has been."""

    def body(engine: InProcessEngine) -> tuple[str, bool]:
        parameters, optimizer = start(engine)
        session = optimizer._reducer.session
        sent = train(engine, parameters, optimizer, range(STEPS))
        kept = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
        exchanges = [bucket.state.residual for bucket in session._exchanges]
        return sent[-1], not kept and exchanges == [None] * len(exchanges)

    first, *others = run_ranks(2, body)
    assert set(others) == {first}


def test_a_network_that_changes_is_noticed() -> None:
    def body(engine: InProcessEngine) -> tuple[list[str], list[str]]:
        price = [2e-8]
        slowed(engine, lambda: price[0])
        parameters, optimizer = start(engine)
        sent = train(engine, parameters, optimizer, range(60))
        price[0] = 1e-6
        sent += train(engine, parameters, optimizer, range(60, 240))
        return sent, [event.kind for event in optimizer.controller.history]

    first, *others = run_ranks(2, body)
    assert others == [first]
    sent, kinds = first
    assert "bits=4" in sent[-1]
    assert "network" in kinds


def test_without_measurements_the_fewest_bytes_travel_and_one_rank_sends_none() -> None:
    def body(engine: InProcessEngine) -> list[str]:
        parameters, optimizer = start(engine, adapt=False)
        return train(engine, parameters, optimizer, range(4))

    for sent in run_ranks(RANKS, body):
        assert "bits=4" in sent[-1]
        assert len(set(sent[1:])) == 1
    parameters = make_parameters(SHAPES)
    optimizer = make_optimizer(parameters, Compression.auto(), alone, 0, 1, settings=Settings(600, 60, adapt=True))
    backward(parameters, 0, 0)
    optimizer.step()
    assert {d.reason for d in optimizer.decisions.values()} == {"one rank exchanges nothing"}


def test_where_only_dense_will_do_nothing_is_tried() -> None:
    def body(engine: InProcessEngine) -> set[str]:
        parameters, optimizer = start(engine, "dense")
        assert set(train(engine, parameters, optimizer, range(4))[1:]) == {"Cast(dtype=None)"}
        return {d.reason for d in optimizer.decisions.values()}

    assert run_ranks(2, body) == [{"dense by dense: there is no other way"}] * 2


@pytest.mark.parametrize("quality", [0.6, "knee", None, "Near"])
def test_a_quality_is_one_of_a_few(quality: object) -> None:
    with pytest.raises(ConfigError, match=r"unknown quality .* known are dense, near"):
        Compression.auto(quality)  # type: ignore[arg-type]
