"""The coefficient of error feedback: when it grows, and which requests take one."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.compressors import TopK
from hvd_compress.compressors.base import Input
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.schedule import FeedbackSchedule
from hvd_compress.feedback.states import BucketState
from hvd_compress.request.request import Request
from tests.brought import brought


def test_it_grows_every_so_many_steps_up_to_one() -> None:
    schedule = FeedbackSchedule(0.5, 0.25, 3)
    assert [schedule.coefficient(step) for step in range(9)] == [0.5] * 3 + [0.75] * 3 + [1.0] * 3
    assert schedule.coefficient(10**9) == 1.0
    assert FeedbackSchedule(0.5, 0.0).coefficient(10**9) == 0.5
    assert not FeedbackSchedule(0.5, 0.0).keeps_all


def test_by_default_everything_comes_back() -> None:
    assert FeedbackSchedule().keeps_all
    assert {FeedbackSchedule().coefficient(step) for step in (0, 49, 50, 10**6)} == {1.0}
    assert Compression.topk().feedback == FeedbackSchedule()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"initial": -0.1}, "initial = -0.1"),
        ({"initial": 1.1}, "initial = 1.1"),
        ({"initial": float("nan")}, "initial = nan"),
        ({"initial": True}, "initial = True"),
        ({"initial": "half"}, "initial = 'half'"),
        ({"growth": -0.1}, "growth = -0.1"),
        ({"growth": float("inf")}, "growth = inf"),
        ({"every": 0}, "every = 0"),
        ({"every": 2.0}, "every = 2.0"),
        ({"every": True}, "every = True"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compression.topk().with_feedback(**arguments)  # type: ignore[arg-type]


def test_a_request_keeps_all_else_and_says_it_in_its_repr() -> None:
    """Ranks compare the repr before the first step."""
    request = Compression.topk(0.1).by(collective="star", engine="mpi").with_feedback(0.25, 0.5, 7)
    assert request == Request(TopK(0.1), "star", engine="mpi", feedback=FeedbackSchedule(0.25, 0.5, 7))
    assert "initial=0.25, growth=0.5, every=7" in repr(request)
    assert Compression.auto().with_feedback().feedback == FeedbackSchedule(0.5, 0.1, 50)


@pytest.mark.parametrize(
    "request_of",
    [
        Compression.dense,
        Compression.bf16,
        lambda: Compression.int8(stochastic=True),
        *brought("WITHOUT_FEEDBACK"),
    ],
)
def test_without_error_feedback_there_is_nothing_to_multiply(request_of) -> None:
    with pytest.raises(ConfigError, match="has no error feedback"):
        request_of().with_feedback()


def test_what_is_remembered_is_read_and_never_written() -> None:
    state = BucketState(Residual(torch.tensor([2.0, -4.0]), torch.zeros(2)))
    work = Input(torch.zeros(2), Layout.of(2), 0, 0, 1.0, state, coefficient=0.5)
    assert work.residual is work.residual, "computed once"
    assert work.residual is not None
    assert work.residual.tolist() == [1.0, -2.0]
    assert state.residual is not None
    assert state.residual.current.tolist() == [2.0, -4.0]
    assert Input(torch.zeros(2), Layout.of(2), 0, 0, 1.0, state).residual is state.residual.current, "a copy costs time"
