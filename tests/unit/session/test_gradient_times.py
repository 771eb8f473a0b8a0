"""Moments of gradients, on a clock that stands still unless something spends time."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.session.gradient_times import Recorder
from tests.played_clock import Chain, PlayedClock
from tests.played_clock import nobody_watches as nobody_watches

TAKEN = [4.0, 2.0, 1.0]
"""Backward, of the first to the last layer."""
READY = {"2": 1.0, "1": 3.0, "0": 7.0}
"""Since the beginning of the backward pass."""


@pytest.fixture
def clock() -> PlayedClock:
    return PlayedClock()


@pytest.fixture
def chain(clock: PlayedClock) -> Chain:
    return Chain(clock)


@pytest.fixture
def recorder(chain: Chain, clock: PlayedClock):
    found = Recorder(chain.parameters, clock, steps=5)
    yield found
    found.close()


def test_a_gradient_is_ready_when_the_layers_behind_it_are(chain: Chain, recorder: Recorder) -> None:
    chain.loss(TAKEN).backward()
    recorder.end_step()
    (step,) = recorder.times()
    assert step.ready_s == READY
    assert list(step.ready_s) == ["2", "1", "0"]
    assert step.forward_s is None, "nothing is known of what was before"


def test_a_step_begins_where_the_exchange_of_the_last_one_ended(
    chain: Chain, recorder: Recorder, clock: PlayedClock
) -> None:
    for exchanged in (True, False):
        chain.loss(TAKEN).backward()
        clock.now_s += 100.0  # the exchange, or clipping
        recorder.end_step(exchanged)
        clock.now_s += 10.0  # the update
    chain.loss(TAKEN).backward()
    recorder.end_step()
    assert [step.forward_s for step in recorder.times()] == [None, 13.0, 113.0]


def test_a_step_without_gradients_is_part_of_the_next_one(chain: Chain, recorder: Recorder, clock: PlayedClock) -> None:
    chain.loss(TAKEN).backward()
    recorder.end_step(exchanged=True)
    clock.now_s += 5.0
    recorder.end_step()
    clock.now_s += 2.0
    chain.loss(TAKEN).backward()
    recorder.end_step()
    assert [step.forward_s for step in recorder.times()] == [None, 5.0 + 2.0 + 3.0]


def test_of_several_backward_passes_the_last_counts(chain: Chain, recorder: Recorder) -> None:
    for factor in (3.0, 1.0):
        chain.loss([factor * seconds for seconds in TAKEN]).backward()
    recorder.end_step(exchanged=True)
    chain.loss(TAKEN).backward()
    chain.loss(TAKEN).backward()
    recorder.end_step(exchanged=True)
    first, second = recorder.times()
    assert first.ready_s == second.ready_s == READY
    assert second.forward_s == 3.0 + 7.0 + 3.0, "all that comes before the last pass"


def test_losses_of_different_parameters_are_one_step(chain: Chain, recorder: Recorder, clock: PlayedClock) -> None:
    clock.spend(chain.parameters["0"].sum(), 1.0, 2.0).backward()
    clock.spend(chain.parameters["1"].sum(), 5.0, 3.0).backward()
    recorder.end_step()
    assert recorder.times()[0].ready_s == {"0": 2.0, "1": 2.0 + 5.0 + 3.0}


def test_gradients_are_in_the_order_of_their_last_writes(chain: Chain, recorder: Recorder, clock: PlayedClock) -> None:
    """The pass that wrote the first of these is the one in which the backward pass of the step begins."""
    first, second = (chain.parameters[name] for name in ("0", "1"))
    clock.spend(first.sum(), 1.0, 2.0).backward()
    clock.spend(second.sum(), 4.0, 8.0).backward()
    clock.spend(first.sum(), 16.0, 32.0).backward()
    recorder.end_step()
    clock.spend(first.sum(), 64.0, 1.0).backward()
    recorder.end_step()
    found, after = recorder.times()
    assert list(found.ready_s.items()) == [("1", 8.0), ("0", 8.0 + 16.0 + 32.0)]
    assert after.forward_s == 64.0, "since the last gradient, which is not that of the last parameter that is new"


def test_a_pass_whose_beginning_nobody_tells_begins_with_its_first_gradient(
    chain: Chain, clock: PlayedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.autograd.backward
    recorder = Recorder(chain.parameters, clock, steps=5)
    monkeypatch.setattr(torch.autograd, "backward", before)  # as a library that puts its own in the place
    chain.loss(TAKEN).backward()
    recorder.end_step()
    recorder.close()
    assert recorder.times()[0].ready_s == {name: seconds - READY["2"] for name, seconds in READY.items()}


def test_a_shared_parameter_is_ready_once_with_its_last_use(
    chain: Chain, recorder: Recorder, clock: PlayedClock
) -> None:
    shared = chain.parameters["0"].sum()
    clock.spend(shared * clock.spend(shared, 1.0, 4.0), 1.0, 2.0).backward()
    recorder.end_step()
    assert recorder.times()[0].ready_s == {"0": 6.0}


def test_a_closure_is_a_step_as_any_other(chain: Chain, recorder: Recorder) -> None:
    optimizer = torch.optim.SGD(list(chain.parameters.values()), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: recorder.end_step())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = chain.loss(TAKEN)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    first, second = recorder.times()
    assert first.ready_s == second.ready_s == READY
    assert second.forward_s == 3.0


def test_sparse_gradients_are_named(recorder: Recorder, clock: PlayedClock) -> None:
    embedding = torch.nn.Embedding(4, 3, sparse=True)
    own = Recorder({"rows": embedding.weight}, clock, 1)
    embedding(torch.tensor([1])).sum().backward()
    own.close()
    assert own.sparse == {"rows"}
    assert not recorder.sparse


def test_the_last_steps_are_kept_and_those_without_gradients_are_not(chain: Chain, recorder: Recorder) -> None:
    for number in range(8):
        chain.loss([float(number)] * 3).backward()
        recorder.end_step()
    recorder.end_step()
    assert [step.ready_s["2"] for step in recorder.times()] == [4.0, 5.0, 6.0, 7.0]


def test_nobody_waits_for_the_device_while_steps_are_recorded(
    chain: Chain, recorder: Recorder, clock: PlayedClock
) -> None:
    chain.loss(TAKEN).backward()
    recorder.end_step()
    assert clock.waits == 0
    recorder.times()
    assert clock.waits == 1


def test_nothing_is_left_behind(chain: Chain, clock: PlayedClock) -> None:
    """Neither in torch nor on parameters, whoever closes first."""
    before = torch.autograd.backward
    first, second = Recorder(chain.parameters, clock, 5), Recorder(chain.parameters, clock, 5)
    assert torch.autograd.backward is not before
    first.close()
    chain.loss(TAKEN).backward()
    second.end_step()
    assert second.times()[0].ready_s == READY, "the other one still sees where the pass began"
    assert not first._marks.ready
    second.close()
    second.close()
    assert torch.autograd.backward is before


def test_what_others_put_in_the_place_of_backward_stays(chain: Chain, clock: PlayedClock, monkeypatch) -> None:
    calls: list[int] = []
    recorder = Recorder(chain.parameters, clock, 5)
    watched = torch.autograd.backward

    def counting(*arguments, **named):
        calls.append(1)
        return watched(*arguments, **named)

    monkeypatch.setattr(torch.autograd, "backward", counting)
    recorder.close()
    assert torch.autograd.backward is counting
    chain.loss(TAKEN).backward()
    assert calls == [1]
    assert chain.parameters["0"].grad is not None


def test_what_others_wrap_between_two_recordings_is_told_once(chain: Chain, clock: PlayedClock, monkeypatch) -> None:
    """Ours stays within theirs, and theirs within ours: a pass is still one pass, and none of them calls itself."""
    calls: list[int] = []

    def wrap() -> None:
        inner = torch.autograd.backward

        def counting(*arguments, **named):
            calls.append(1)
            return inner(*arguments, **named)

        monkeypatch.setattr(torch.autograd, "backward", counting)

    for number in range(1, 4):
        recorder = Recorder(chain.parameters, clock, 5)
        wrap()
        chain.loss(TAKEN).backward()
        recorder.end_step()
        assert [len(marks.passes) for marks in recorder._steps] == [1], "told though it was wrapped meanwhile"
        other = Recorder(chain.parameters, clock, 5)
        recorder.close()
        chain.loss(TAKEN).backward()
        other.end_step()
        assert [len(marks.passes) for marks in other._steps] == [1]
        assert other.times()[0].ready_s == READY
        other.close()
        calls.clear()
        chain.loss(TAKEN).backward()
        assert len(calls) == number, "each of theirs is called once"
