"""How much memory a session holds, counted in bytes an element of the gradients."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.compressors import BlockQuantizer, Cast, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.feedback.residual import Residual
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.session.session import Session
from tests.unit.session.test_session import DEVICES, SETTINGS, Playing

NAMES, SHAPE = tuple("abcdefgh"), (64, 64)
NUMEL = len(NAMES) * 64 * 64
DECISIONS = {
    "dense": (Decision(Cast(), Path("dense")), 0.0),
    "bf16": (Decision(Cast(torch.bfloat16), Path("alltoall")), 0.0),
    "int4": (Decision(BlockQuantizer(4), Path("allgather")), 8.0),
    "int4, owners": (Decision(BlockQuantizer(4), Path("alltoall-allgather")), 8.0),
    "topk": (Decision(TopK(0.01), Path("allgather")), 8.0),
    "powersgd": (Decision(PowerSGD(4), Path("allreduce")), 8.0 + 2 * 4 * 4 / 64),
}
"""And bytes an element: a residual and its successor; of PowerSGD, Q and the one that was replaced."""


def bucket(*names: str) -> Layout:
    return Layout(names, (SHAPE,) * len(names))


def session_of(engine: InProcessEngine, decision: Decision) -> Session:
    slots = {name: Slot(SHAPE, torch.float32) for name in NAMES}
    session = Session(slots, Request(Cast(), policy=Playing([decision])), SETTINGS, lambda: engine)
    session.open(NAMES)
    return session


def step(session: Session) -> None:
    session.begin_step()
    for number, each in enumerate(session.buckets.layouts):
        session.submit(number, torch.randn(each.numel))
    session.end_step()


def tensors_of(session: Session) -> Iterator[torch.Tensor]:
    """Yield all that a session holds."""
    seen, waiting = set(), [session]
    while waiting:
        held = waiting.pop()
        if id(held) in seen or isinstance(held, (InProcessEngine, type)) or type(held).__name__ == "module":
            continue
        seen.add(id(held))
        if isinstance(held, torch.Tensor):
            yield held
        elif type(held).__module__.startswith("hvd_compress") or isinstance(held, (dict, list, tuple, set)):
            waiting += gc.get_referents(held)


@pytest.mark.parametrize("name", DECISIONS)
def test_between_steps_a_session_holds_residuals_and_nothing_of_a_step(name: str) -> None:
    decision, most = DECISIONS[name]

    def body(engine: InProcessEngine) -> float:
        session = session_of(engine, decision)
        session.set_buckets([bucket(*NAMES)], DEVICES)
        step(session)
        session.begin_step()
        session.set_buckets([bucket(*NAMES[:3]), bucket(*NAMES[3:])], DEVICES)
        for _ in range(2):
            step(session)
        session.buckets.release_gradients()
        storages = {each.data_ptr(): each.nbytes() for t in tensors_of(session) if (each := t.untyped_storage())}
        session.close()
        return sum(storages.values()) / NUMEL

    for found in run_ranks(2, body):
        assert found == pytest.approx(most, abs=0.02)


def test_buckets_that_are_cut_anew_in_a_step_take_the_memory_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(InProcessWorld(1).engine(0), DECISIONS["topk"][0])
    made: list[weakref.ref[Residual]] = []
    held: list[float] = []
    zeros = Residual.zeros

    def noted(numel: int, device: torch.device) -> Residual:
        residual = zeros(numel, device)
        made.append(weakref.ref(residual))
        alive = [each for ref in made if (each := ref()) is not None]
        held.append(sum(memory.nbytes for each in alive for memory in each.memory) / NUMEL)
        return residual

    monkeypatch.setattr(Residual, "zeros", staticmethod(noted))
    session.set_buckets([bucket(*NAMES)], DEVICES)
    step(session)
    before = session.states.state_dict()
    session.begin_step()
    session.set_buckets([bucket(name) for name in NAMES], DEVICES)
    assert max(held) <= 12.0, "of the residual that is moved, one buffer"
    alive = [each for ref in made if (each := ref()) is not None]
    assert sum(memory.nbytes for each in alive for memory in each.memory) == 8 * NUMEL
    assert all(torch.equal(before[name], kept) for name, kept in session.states.state_dict().items())
    step(session)
    session.close()


def test_a_step_that_was_cut_anew_between_steps_can_be_taken_back() -> None:
    """Also where a bucket joins parameters of which nothing was remembered."""
    session = session_of(InProcessWorld(1).engine(0), DECISIONS["topk"][0])
    session.set_buckets([bucket(*NAMES[:4])], DEVICES)
    step(session)
    before = session.states.state_dict()
    step(session)
    session.set_buckets([bucket(*NAMES[2:6]), bucket(*NAMES[:2], *NAMES[6:])], DEVICES)
    session.drop_step()
    found = session.states.state_dict()
    assert all(torch.equal(found[name], before.get(name, torch.zeros(64 * 64))) for name in NAMES)
    session.close()
