"""What a compressor keeps beside the residual: it changes with a step that all ranks committed, and with no other."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import BlockQuantizer, CompressedMomentum, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import CommunicationError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from tests.harness import REQUESTS, backward, flat_residual, on_engine, place, remembered

SIZE, REQUEST = 3, REQUESTS["powersgd"]
Kept = dict[str, dict[str, torch.Tensor]]


def kept(optimizer: ReducingOptimizer) -> Kept:
    return remembered(optimizer.state_dict()["hvd_compress"])["states"]


def equal(first: Kept, second: Kept) -> bool:
    return first.keys() == second.keys() and all(
        tensors.keys() == second[kind].keys() and all(torch.equal(q, second[kind][name]) for name, q in tensors.items())
        for kind, tensors in first.items()
    )


def train(optimizer: ReducingOptimizer, parameters: dict[str, torch.nn.Parameter], rank: int, steps: range) -> None:
    for step in steps:
        backward(parameters, rank, step)
        optimizer.step()
        optimizer.zero_grad()


def test_it_is_kept_by_parameter_name_and_is_one_on_all_ranks() -> None:
    def body(engine: InProcessEngine) -> tuple[Kept, Kept]:
        parameters, optimizer = on_engine(engine, REQUEST)
        train(optimizer, parameters, engine.rank, range(1))
        first = kept(optimizer)
        train(optimizer, parameters, engine.rank, range(1, 3))
        return first, kept(optimizer)

    ranks = run_ranks(SIZE, body)
    first, last = ranks[0]
    assert {name: tuple(q.shape) for name, q in first["powersgd.q"].items()} == {
        "first.weight": (13, 2),
        "second.weight": (9, 2),
    }
    assert not equal(first, last)
    assert all(equal(own, last) for _, own in ranks)


def test_a_step_that_is_not_finite_leaves_it() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, REQUEST)
        train(optimizer, parameters, engine.rank, range(2))
        before = kept(optimizer)
        if engine.rank == 1:
            parameters["second.weight"].register_hook(lambda own: torch.full_like(own, torch.nan))
        backward(parameters, engine.rank, 2)
        optimizer.synchronize()
        assert of(optimizer).last_step is not None
        assert not of(optimizer).last_step.finite
        assert equal(kept(optimizer), before)

    run_ranks(SIZE, body)


def test_a_step_that_fails_leaves_it() -> None:
    together = threading.Barrier(SIZE)

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, REQUEST)
        train(optimizer, parameters, engine.rank, range(2))
        before, residual = kept(optimizer), flat_residual(optimizer, parameters)
        together.wait(60.0)  # else the end of the step before could fail on another rank
        backward(parameters, engine.rank, 2)
        if engine.rank == 1:
            engine.world.abort("a cable was pulled")
        with pytest.raises(CommunicationError):
            optimizer.synchronize()
        assert equal(kept(optimizer), before)
        assert torch.equal(flat_residual(optimizer, parameters), residual)

    run_ranks(SIZE, body)


@pytest.mark.parametrize(
    ("collective", "hosts", "without"),
    [
        ("hierarchical", (0, 1, 0, 1), None),
        ("alltoall-allgather", (0, 0, 1, 1), None),
        ("alltoall-allgather", (0, 0, 1, 1), 1),
    ],
)
def test_ranks_go_on_with_that_of_rank_0(collective: str, hosts: tuple[int, ...], without: int | None) -> None:
    """Leaders alone have kept up with the momentum; then others lead, or all speak, or one has lost its checkpoint."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        place(engine, (0, 0, 1, 1))
        compressor = CompressedMomentum(0.9, BlockQuantizer(8))
        parameters, optimizer = on_engine(engine, Request(compressor, "hierarchical"))
        train(optimizer, parameters, engine.rank, range(2))
        state = optimizer.state_dict()
        place(engine, hosts)
        engine._groups.clear()
        parameters, optimizer = on_engine(engine, Request(compressor, collective))
        if engine.rank != without:
            optimizer.load_state_dict(state)
        train(optimizer, parameters, engine.rank, range(2, 4))
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])

    first, *others = run_ranks(4, body)
    assert all(torch.equal(other, first) for other in others)


def test_a_decision_that_changes_by_its_reason_changes_nothing() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, REQUEST)
        train(optimizer, parameters, engine.rank, range(2))
        before, buckets = kept(optimizer), optimizer._reducer.session.buckets.every
        for bucket in buckets:
            collective, decision = bucket.collective, replace(bucket.decision, reason="told anew")
            assert decision == bucket.decision
            bucket.decide(decision)
            assert bucket.collective is collective
            assert bucket.decision.reason == "told anew"
        assert equal(kept(optimizer), before)

    run_ranks(SIZE, body)


def test_decisions_are_equal_but_for_reason_and_trial() -> None:
    first = Decision(TopK(0.1), Path("star"), reason="a", is_trial=True)
    assert first == Decision(TopK(0.1), Path("star"), reason="b")
    assert first != Decision(TopK(0.1), Path("var"), reason="a", is_trial=True)
    assert first != Decision(PowerSGD(), Path("allreduce"))
