"""What a bucket remembers when its decision changes."""

from __future__ import annotations

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.devices.lane import HOST
from hvd_compress.feedback.states import States
from hvd_compress.request.decision import Decision
from hvd_compress.session.bucket import SessionBucket

DENSE = Decision(Cast(), Path("dense"))
TOPK, POWERSGD = Decision(TopK(0.1), Path("allgather")), Decision(PowerSGD(2), Path("allreduce"))


def bucket_of(decision: Decision, dtype: torch.dtype = torch.float32) -> SessionBucket:
    layout = Layout.of((20, 12), 37)
    return SessionBucket(0, Layout(layout.names, layout.shapes, dtype), decision, HOST, States())


def test_a_residual_is_dropped_once_a_step_without_one_was_kept() -> None:
    """And not before: a step that was not finite has sent nothing. Also where 16 bits round something off each time."""
    for dtype in (torch.float32, torch.bfloat16):
        bucket = bucket_of(TOPK, dtype)
        bucket.commit()
        bucket.decide(DENSE)
        for _ in range(2):
            bucket.drop()
            assert bucket.state.residual is not None
            bucket.state.discard()
        bucket.commit()
        bucket.drop()
        assert bucket.state.residual is None
        assert bucket.states.state_dict() == {}


def test_a_residual_that_the_decision_has_a_use_for_stays() -> None:
    bucket = bucket_of(TOPK)
    assert bucket.state.residual is not None
    bucket.state.residual.pending.fill_(3.0)
    bucket.commit()
    bucket.drop()
    assert bool((bucket.state.residual.current == 3.0).all())


def test_states_of_compressors_that_are_in_use_no_more_are_dropped() -> None:
    bucket = bucket_of(POWERSGD)
    own = dict(bucket.state.current)
    assert own
    bucket.decide(TOPK)
    assert bucket.state.current.keys() == own.keys(), "until then another step may come back to it"
    bucket.commit()
    bucket.drop()
    assert bucket.state.current == {}
    assert bucket.state.residual is not None
    assert bucket.states.own_state_dict() == {}


def test_what_a_checkpoint_brings_later_is_dropped_again() -> None:
    bucket = bucket_of(DENSE)
    bucket.commit()
    bucket.drop()
    names = bucket.layout.names
    numels = dict(zip(names, bucket.layout.segments, strict=True))
    residuals = {name: torch.ones(numel) for name, numel in numels.items()}
    own = {"powersgd.q": {names[0]: torch.ones(12, 2)}}
    bucket.states.load_state_dict(residuals, numels, own)
    bucket.claim()
    bucket.drop()
    assert bucket.state.residual is not None
    assert bucket.states.own_state_dict() != {}
    bucket.commit()
    bucket.drop()
    assert bucket.state.residual is None
    assert (bucket.states.state_dict(), bucket.states.own_state_dict()) == ({}, {})


def test_own_states_stay_as_they_are() -> None:
    bucket = bucket_of(TOPK)
    bucket.decide(POWERSGD)
    for tensor in bucket.state.current.values():
        tensor.fill_(2.0)
    bucket.commit()
    bucket.drop()
    assert bucket.state.current
    assert all(bool((tensor == 2.0).all()) for tensor in bucket.state.current.values())
