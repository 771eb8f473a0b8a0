"""EF-sign in one pass over memory: what it leaves is the residual, once somebody asks for it."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.allgather import AllGather
from hvd_compress.collectives.base import Work
from hvd_compress.compressors.base import Input
from hvd_compress.compressors.efsign import EFSign, SentSigns
from hvd_compress.compressors.topk import TopK
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState, States
from hvd_compress.payload import Payload

LAYOUT = Layout.of(700, (30, 41), 3, 5000)
STEPS = 5


def gradient(step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(step)).to(dtype)


def step(compressor: EFSign | TopK, state: BucketState, number: int, dtype: torch.dtype = torch.float32) -> Payload:
    work = Input(gradient(number, dtype), LAYOUT, number, 0, 1.0, state)
    payload = compressor.encode(work)
    state.commit()
    return payload


def in_two_passes() -> BucketState:
    """A residual that may owe nothing: what is sent is subtracted in the step that sends it."""
    return BucketState(Residual(torch.zeros(LAYOUT.numel), torch.zeros(LAYOUT.numel)))


def current(state: BucketState) -> torch.Tensor:
    assert state.residual is not None
    return state.residual.current


def assert_equal(a: Payload, b: Payload) -> None:
    assert all(torch.equal(a[name], b[name]) for name in ("bits", "scales"))


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_pass_does_what_two_do_to_the_bit(layerwise: bool, dtype: torch.dtype) -> None:
    compressor, state, other = EFSign(layerwise), States().bind(LAYOUT), in_two_passes()
    for number in range(STEPS):
        assert_equal(step(compressor, state, number, dtype), step(compressor, other, number, dtype))
    assert torch.equal(current(state), current(other))


def test_steps_of_a_bucket_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "sign_accumulate", None)
    state = States().bind(LAYOUT)
    for number in range(STEPS):
        step(EFSign(), state, number)
        assert state.residual is not None
        assert state.residual.kept.deferred is not None


def test_its_collective_does_not_ask_for_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take more passes than are spared."""
    monkeypatch.setattr(SentSigns, "subtracted", None)
    state = States().bind(LAYOUT)
    for number in range(STEPS):
        work = Work(gradient(number), LAYOUT, number, 0, 0.5, state)
        AllGather(EFSign()).exchange(work, 0, 2).encode()
        state.commit()
        assert state.residual is not None
        assert state.residual.kept.deferred is not None


def test_who_reads_the_residual_changes_nothing() -> None:
    """A checkpoint may be written by another thread, while a step reads the same memory."""
    states = States()
    state = states.bind(LAYOUT)
    step(EFSign(), state, 0)
    assert state.residual is not None
    before, deferred = state.residual.kept.memory.clone(), state.residual.kept.deferred
    states.state_dict()
    states.keep()
    state.residual.square_norm()
    assert torch.equal(state.residual.kept.memory, before)
    assert state.residual.kept.deferred is deferred


def test_what_a_step_leaves_can_be_read_in_it() -> None:
    """By a probe: then it is the residual."""
    state, other = States().bind(LAYOUT), in_two_passes()
    for number in range(STEPS):
        for own in (state, other):
            EFSign().encode(Input(gradient(number), LAYOUT, number, 0, 1.0, own))
        assert state.residual is not None
        assert other.residual is not None
        assert torch.equal(state.residual.pending, other.residual.pending)
        state.commit()
        other.commit()
    assert torch.equal(current(state), current(other))


def test_the_residual_can_be_read_between_steps() -> None:
    """By a checkpoint, or a report of its norm: the next step goes on from what it finds."""
    states = States()
    state, other = states.bind(LAYOUT), in_two_passes()
    for number in range(STEPS):
        assert_equal(step(EFSign(), state, number), step(EFSign(), other, number))
        saved = torch.cat([states.state_dict()[name] for name in LAYOUT.names])
        assert torch.equal(saved, current(other))


@pytest.mark.parametrize("others", [TopK(0.1), EFSign(layerwise=False)], ids=["top-k", "one scale"])
def test_another_compressor_takes_over_and_gives_back(others: EFSign | TopK) -> None:
    state, other = States().bind(LAYOUT), in_two_passes()
    for number in range(2 * STEPS):
        compressor = others if number % 3 == 2 else EFSign()
        step(compressor, state, number)
        step(compressor, other, number)
    assert torch.equal(current(state), current(other))


def test_a_step_that_does_not_count_leaves_the_residual() -> None:
    state, other = States().bind(LAYOUT), in_two_passes()
    step(EFSign(), state, 0)
    step(EFSign(), other, 0)
    EFSign().encode(Input(gradient(7).fill_(torch.nan), LAYOUT, 1, 0, 1.0, state))
    state.discard()
    assert_equal(step(EFSign(), state, 1), step(EFSign(), other, 1))
    assert torch.equal(current(state), current(other))


def test_a_commit_is_taken_back() -> None:
    state, other = States().bind(LAYOUT), in_two_passes()
    for number in range(2):
        step(EFSign(), state, number)
    state.revert()
    step(EFSign(), other, 0)
    assert torch.equal(current(state), current(other))


def test_a_residual_that_decays_is_read_as_it_is() -> None:
    state, other = States().bind(LAYOUT), in_two_passes()
    for number in range(3):
        for own in (state, other):
            EFSign().encode(Input(gradient(number), LAYOUT, number, 0, 1.0, own, coefficient=0.5))
            own.commit()
    assert torch.equal(current(state), current(other))


def test_reading_parameters_one_by_one_looks_at_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.of(*[7] * 400)
    states = States()
    state = states.bind(layout)
    EFSign().encode(Input(torch.randn(layout.numel), layout, 0, 0, 1.0, state))
    state.commit()
    counted, where = [], torch.where
    monkeypatch.setattr(torch, "where", lambda *arguments: counted.append(1) or where(*arguments))
    states.state_dict()
    assert len(counted) == len(layout.names)
