from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState, States

NUMELS = {"a": 2, "b": 3, "c": 1}


def layout(names: list[str], numels: list[int]) -> Layout:
    return Layout(tuple(names), tuple((numel,) for numel in numels))


def bind_residual(states: States, names: list[str], numels: list[int]) -> Residual:
    residual = states.bind(layout(names, numels)).residual
    assert residual is not None
    return residual


def test_residuals_begin_at_zero() -> None:
    residuals = States()
    bucket = bind_residual(residuals, ["a", "b"], [2, 3])
    assert bucket.current.tolist() == [0.0] * 5
    assert {name: value.tolist() for name, value in residuals.state_dict().items()} == {"a": [0, 0], "b": [0, 0, 0]}


def test_what_a_step_prepares_counts_after_commit_only() -> None:
    residuals = States()
    bucket = bind_residual(residuals, ["a", "b"], [2, 3])
    bucket.pending.copy_(torch.arange(5.0))
    assert not residuals.state_dict()["b"].any()
    bucket.commit()
    assert residuals.state_dict()["b"].tolist() == [2, 3, 4]


def test_residuals_outlive_a_change_of_buckets() -> None:
    residuals = States()
    bucket = bind_residual(residuals, ["a", "b", "c"], [2, 3, 1])
    bucket.pending.copy_(torch.arange(6.0))
    bucket.commit()
    bind_residual(residuals, ["c"], [1])
    other = bind_residual(residuals, ["b", "a"], [3, 2])
    assert other.current.tolist() == [2, 3, 4, 0, 1]
    assert residuals.state_dict()["c"].tolist() == [5]


def test_a_checkpoint_can_come_before_the_buckets_and_after() -> None:
    saved = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0, 5.0])}
    residuals = States()
    residuals.load_state_dict(saved, NUMELS)
    assert residuals.state_dict().keys() == {"a", "b"}
    bucket = bind_residual(residuals, ["b", "c", "a"], [3, 1, 2])
    assert bucket.current.tolist() == [3, 4, 5, 0, 1, 2]
    residuals.load_state_dict({"c": torch.tensor([7.0])}, NUMELS)
    assert bucket.current.tolist() == [0, 0, 0, 7, 0, 0], "what a checkpoint lacks starts again from zero"


def test_state_dict_is_a_copy() -> None:
    residuals = States()
    bucket = bind_residual(residuals, ["a"], [2])
    state = residuals.state_dict()
    bucket.current.fill_(1)
    assert not state["a"].any()


@pytest.mark.parametrize(
    ("state", "words"),
    [({"x": torch.zeros(2)}, "no such parameter"), ({"b": torch.zeros(2)}, "2 elements instead of 3")],
)
def test_a_checkpoint_of_another_model_changes_nothing(state: dict[str, torch.Tensor], words: str) -> None:
    residuals = States()
    bucket = bind_residual(residuals, ["a", "b", "c"], [2, 3, 1])
    bucket.current.fill_(1)
    with pytest.raises(ValueError, match=words):
        residuals.load_state_dict({"a": torch.zeros(2), **state}, NUMELS)
    assert bucket.current.tolist() == [1.0] * 6


def test_scaling_reaches_all() -> None:
    residuals = States()
    residuals.load_state_dict({"a": torch.ones(2), "c": torch.ones(1)}, NUMELS)
    bucket = bind_residual(residuals, ["a"], [2])
    residuals.scale(0.5)
    assert bucket.current.tolist() == [0.5, 0.5]
    assert residuals.state_dict()["c"].tolist() == [0.5]


@pytest.mark.parametrize("numel", [0, 1, 1000, 65_536, 131_072, 3_000_001])
def test_a_norm_of_many_elements_is_estimated_from_some(numel: int) -> None:
    bucket = bind_residual(States(), ["a"], [numel])
    bucket.current.normal_(generator=torch.Generator().manual_seed(1))
    assert float(bucket.square_norm()) == pytest.approx(float(bucket.current.double().square().sum()), rel=0.02)


KEY = ("q", "a")
OWN = {KEY: torch.zeros(2), ("q", "b"): torch.zeros(3)}


def test_what_a_compressor_keeps_changes_with_a_commit_alone() -> None:
    states = States()
    bucket = states.bind(layout(["a", "b"], [2, 3]), own=OWN)
    bucket.pending[KEY] = torch.ones(2)
    bucket.discard()
    bucket.commit()
    assert not states.own_state_dict()["q"]["a"].any()
    bucket.pending[KEY] = torch.ones(2)
    bucket.commit()
    assert states.own_state_dict()["q"]["a"].tolist() == [1, 1]
    assert not bucket.pending


def test_what_a_compressor_keeps_outlives_a_change_of_buckets() -> None:
    states = States()
    bucket = states.bind(layout(["a", "b"], [2, 3]), own=OWN)
    bucket.pending.update({key: torch.full_like(own, 7.0) for key, own in OWN.items()})
    bucket.commit()
    for name, numel in (("a", 2), ("b", 3)):
        apart = states.bind(layout([name], [numel]), own={("q", name): torch.zeros(numel)})
        assert apart.current["q", name].tolist() == [7.0] * numel
    states.bind(layout(["a"], [2]))
    assert states.own_state_dict().keys() == {"q"}
    assert states.own_state_dict()["q"].keys() == {"a", "b"}, "it waits for a compressor that has a place for it"


def test_what_a_compressor_keeps_comes_back_from_a_checkpoint_before_and_after_buckets() -> None:
    saved = {"q": {"a": torch.ones(2)}}
    states = States()
    states.load_state_dict({}, NUMELS, saved)
    assert states.bind(layout(["a"], [2]), own={KEY: torch.zeros(2)}).current[KEY].tolist() == [1, 1]
    states.load_state_dict({}, NUMELS, {"q": {"a": torch.full((2,), 2.0)}})
    assert states.own_state_dict()["q"]["a"].tolist() == [2, 2]
    with pytest.warns(
        UserWarning, match=r"the q of parameter 'a' is remembered with shape \(5,\) and starts anew with \(2,\)"
    ):
        states.load_state_dict({}, NUMELS, {"q": {"a": torch.ones(5)}})
    assert states.own_state_dict()["q"]["a"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"x": torch.ones(2)}, "a q of parameter 'x' was saved"),
        ({"a": torch.tensor([1.0, torch.nan])}, "is not finite"),
    ],
)
def test_what_a_compressor_cannot_use_is_refused(saved: dict[str, torch.Tensor], words: str) -> None:
    states = States()
    states.bind(layout(["a"], [2]), own={KEY: torch.zeros(2)})
    with pytest.raises(ValueError, match=words):
        states.load_state_dict({}, NUMELS, {"q": saved})
    assert not states.own_state_dict()["q"]["a"].any()


def test_memory_of_what_a_commit_replaced_is_for_the_next_step() -> None:
    """Two pieces in turns, and none of them is what counts now."""
    first, second = torch.zeros(2), torch.ones(2)
    bucket = BucketState(current={KEY: first}, pending={KEY: second})
    bucket.commit()
    assert bucket.current[KEY] is second
    assert bucket.spare[KEY] is first
    bucket.commit()  # of a step without this key
    assert bucket.current[KEY] is second
    bucket.revert()
    assert bucket.current[KEY] is second
    bucket.pending[KEY] = first
    bucket.commit()
    assert bucket.spare[KEY] is second


def test_after_a_commit_that_is_taken_back_memory_of_what_it_brought_is_free() -> None:
    first, second = torch.zeros(2), torch.ones(2)
    bucket = BucketState(current={KEY: first}, pending={KEY: second})
    bucket.commit()
    bucket.revert()
    assert bucket.current[KEY] is first
    assert bucket.spare[KEY] is second
    bucket.pending[KEY] = third = torch.ones(2)
    bucket.discard()
    assert bucket.current[KEY] is first
    assert bucket.spare[KEY] is third


def test_what_is_kept_outlives_steps_that_write_to_spare_memory() -> None:
    states = States()
    bucket = states.bind(layout(["a"], [2]), own={KEY: torch.zeros(2)})

    def step(value: float) -> None:
        own = bucket.spare.get(KEY, torch.empty(2))
        bucket.pending[KEY] = own.fill_(value)
        bucket.commit()

    step(1.0)
    restore = states.keep()
    for _ in range(2):
        for value in (2.0, 3.0, 4.0):
            step(value)
        assert bucket.current[KEY].tolist() == [4, 4]
        restore()
        assert bucket.current[KEY].tolist() == [1, 1]


def test_what_was_kept_comes_back_into_other_buckets() -> None:
    """Steps that are taken back may have given parameters other buckets, or a compressor that keeps something more."""
    states, key = States(), ("kind", "a")
    states.load_state_dict({"c": torch.tensor([7.0])}, NUMELS)
    before = states.bind(layout(["a", "b"], [2, 3]), own={key: torch.tensor([1.0])})
    assert before.residual is not None
    before.residual.current.copy_(torch.arange(5.0))
    restore = states.keep()
    for names in (["a", "b"], ["b", "c", "a"]):
        after = states.bind(layout(names, [NUMELS[name] for name in names]), own={key: torch.tensor([9.0])})
        assert after.residual is not None
        after.residual.current.fill_(5.0)
        after.current[key] = torch.tensor([2.0])
        restore()
        found = {name: residual.tolist() for name, residual in states.state_dict().items()}
        assert found == {"a": [0, 1], "b": [2, 3, 4], "c": [7]}
        assert after.current[key].tolist() == [1.0]
