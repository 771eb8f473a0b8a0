"""Buckets that are skipped: who is sent when, and that nothing is lost."""

from __future__ import annotations

import pickle
from collections import Counter
from functools import partial
from pathlib import Path as FilePath

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.feedback.schedule import FeedbackSchedule
from hvd_compress.papers.covap.settings import Covap
from hvd_compress.papers.covap.sharded import Shard
from hvd_compress.papers.covap.skip import SKIP
from hvd_compress.papers.covap.turns import Turn
from hvd_compress.policies import plan_schema
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import (
    SHAPES,
    alone,
    backward,
    flat_gradient,
    flat_residual,
    gradient,
    make_optimizer,
    make_parameters,
    on_engine,
    remembered,
    use,
)
from tests.logged import events_of

INTERVAL = 3
ONE = Settings(fusion_threshold_bytes=1 << 20, timeout_s=60)
"""All parameters in one bucket."""
SENT = {
    "dense": None,
    "int8": Compression.int8(),
    "int4": Compression.int4(),
    "topk": Compression.topk(0.1),
    "star": Compression.topk(0.1).by(collective="star"),
    "efsign": Compression.efsign(),
}
REQUEST = Request(Cast(), policy=Covap(INTERVAL, shard=False))


def given(rank: int, step: int) -> torch.Tensor:
    """The gradient of a rank, in the order of flat_gradient()."""
    return torch.cat([gradient(name, shape, rank, step).reshape(-1) for name, shape in SHAPES.items()])


def test_bucket_t_is_sent_in_step_s_iff_t_plus_s_is_a_multiple() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        sent, bytes_ = [], []
        for step in range(7):
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            use(parameters.values())
            buckets = list(of(optimizer).decisions)  # all three, by number
            sent.append([bool(parameters[names[0]].grad.any()) for names in buckets])
            bytes_.append(of(optimizer).last_step.sent_bytes)
            optimizer.zero_grad()
        return sent, bytes_, [sum(parameters[n].numel() for n in names) * 4 for names in buckets]

    for sent, bytes_, sizes in run_ranks(2, body):
        assert len(sizes) == 3
        expected = [[(number + step) % INTERVAL == 0 for number in range(3)] for step in range(7)]
        assert sent == expected
        # Two ranks: an allreduce sends as many bytes as the bucket has.
        assert bytes_ == [sum(size for size, goes in zip(sizes, row, strict=True) if goes) for row in expected]


def test_what_is_not_sent_is_left() -> None:
    """What came back and what ranks still hold is what was given, in sum."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        came = 0
        for step in range(8):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            use(parameters.values())
            came = came + flat_gradient(parameters)
        return came, flat_residual(optimizer, parameters)

    ranks = run_ranks(3, body)
    total = sum(given(rank, step) for rank in range(3) for step in range(8)) / 3
    left = sum(residual for _, residual in ranks) / 3
    assert left.any()
    torch.testing.assert_close(ranks[0][0] + left, total, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(came, ranks[0][0]) for came, _ in ranks)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_in_a_skipped_bucket_is_dropped(bad: float) -> None:
    """Other ranks cannot know: nobody waits, the step counts, and the residual of that bucket stays on that rank."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        hurts = 0
        for step in range(8):
            skipped = [
                names[0] for names, d in of(optimizer).decisions.items() if d.collective == "skip" and len(names) > 1
            ]
            before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
            hurt = skipped[0] if engine.rank == 1 and skipped and step in (4, 5) else None
            hurts += hurt is not None
            loss = sum(
                (p * gradient(n, tuple(p.shape), engine.rank, step)).sum() * (bad if n == hurt else 1.0)
                for n, p in parameters.items()
            )
            loss.backward()
            optimizer.step()
            assert of(optimizer).last_step.finite
            if hurt is not None:
                after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
                (mates,) = [names for names in of(optimizer).decisions if hurt in names]
                assert all(torch.equal(before[name], after[name]) for name in mates)  # the whole bucket's
                others = [n for names, d in of(optimizer).decisions.items() for n in names if n not in mates]
                assert any(not torch.equal(before[n], after[n]) for n in others)
            optimizer.zero_grad()
        assert (hurts > 0) == (engine.rank == 1)
        return of(optimizer).last_step.nonfinite_steps, [p.detach().clone() for p in parameters.values()]

    ranks = run_ranks(2, body)
    assert [count for count, _ in ranks] == [0, 0]
    assert all(torch.isfinite(p).all() for p in ranks[0][1])
    assert all(torch.equal(a, b) for a, b in zip(ranks[0][1], ranks[1][1], strict=True))


def test_a_step_that_is_not_finite_changes_no_residual_of_a_skipped_bucket() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        for step in range(5):
            sent = [names[0] for names, d in of(optimizer).decisions.items() if d.collective != "skip"]
            before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
            hurt = sent[0] if engine.rank == 1 and step == 4 else None
            loss = sum(
                (p * gradient(n, tuple(p.shape), engine.rank, step)).sum() * (float("nan") if n == hurt else 1.0)
                for n, p in parameters.items()
            )
            loss.backward()
            optimizer.synchronize()
            use(parameters.values())
            optimizer.zero_grad()
        after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
        assert not of(optimizer).last_step.finite
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)

    run_ranks(2, body)


def test_residuals_survive_a_checkpoint() -> None:
    def train(optimizer, parameters, steps) -> list[torch.Tensor]:
        for step in steps:
            optimizer.zero_grad()
            backward(parameters, 0, step)
            optimizer.step()
        return [p.detach().clone() for p in parameters.values()]

    parameters, optimizer = on_engine(alone(), REQUEST)
    train(optimizer, parameters, range(4))
    state, values = optimizer.state_dict(), [p.detach().clone() for p in parameters.values()]
    expected = train(optimizer, parameters, range(4, 8))
    parameters, resumed = on_engine(alone(), REQUEST)
    with torch.no_grad():
        for parameter, value in zip(parameters.values(), values, strict=True):
            parameter.copy_(value)
    resumed.load_state_dict(state)
    for a, b in zip(train(resumed, parameters, range(4, 8)), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("interval", [1, 2, 3, 5])
@pytest.mark.parametrize("name", SENT)
def test_nothing_of_a_shard_is_lost(name: str, interval: int) -> None:
    """Of one bucket, whatever sends its shards: what came back and what ranks still hold is what was given, in sum."""
    request = Compression.covap(interval, sent=SENT[name])

    def body(engine: InProcessEngine):
        parameters = make_parameters()
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 3, settings=ONE)
        came, moved = 0, []
        for step in range(2 * interval + 1):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            use(parameters.values())
            came = came + flat_gradient(parameters)
            moved.append(of(optimizer).last_step.sent_bytes)
        assert len(of(optimizer).decisions) == 1
        return came, flat_residual(optimizer, parameters), moved

    ranks = run_ranks(3, body)
    total = sum(given(rank, step) for rank in range(3) for step in range(2 * interval + 1)) / 3
    left = sum(residual for _, residual, _ in ranks) / 3
    torch.testing.assert_close(ranks[0][0] + left, total, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(came, ranks[0][0]) for came, _, _ in ranks)
    moved = ranks[0][2]
    assert max(moved) <= 1.25 * sum(moved[:interval]) / interval + 64, "steps send about as much"


def test_shards_take_turns() -> None:
    """Shard t in step s iff (t + s) mod interval = 0: of one bucket the first in step 0, and then the last."""

    def body(engine: InProcessEngine):
        parameters = make_parameters()
        request = Compression.covap(4)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, settings=ONE)
        shards, zero = [], []
        for step in range(6):
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            use(parameters.values())
            ((names, decision),) = of(optimizer).decisions.items()
            shards.append(decision.shard)  # of the next step
            assert decision.reason == f"asked for; shard {decision.shard.number + 1} of 4"
            flat = torch.cat([parameters[name].grad.reshape(-1) for name in names])
            zero.append([not flat[Shard(number, 4).of(flat.numel())].any() for number in range(4)])
            optimizer.zero_grad()
        return shards, zero

    for shards, zero in run_ranks(2, body):
        assert [shard.number for shard in shards] == [3, 2, 1, 0, 3, 2]
        assert zero == [[number != sent for number in range(4)] for sent in (0, 3, 2, 1, 0, 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_of_16_bits(dtype: torch.dtype) -> None:
    def body(engine: InProcessEngine):
        parameters = make_parameters(dtype=dtype)
        request = Compression.covap(2, sent=Compression.int8())
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, settings=ONE)
        came = 0
        for step in range(4):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            use(parameters.values())
            came = came + flat_gradient(parameters)
        return came, flat_residual(optimizer, parameters)

    (came, left), (other, other_left) = run_ranks(2, body)
    assert torch.equal(came, other)
    total = sum(given(rank, step).to(dtype).float() for rank in range(2) for step in range(4)) / 2
    torch.testing.assert_close(came + (left + other_left) / 2, total, rtol=2e-2, atol=6e-2)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_is_not_sent_can_be_held(set_to_none: bool) -> None:
    """Momentum and weight decay move what has a gradient of zero, and leave alone what has none."""

    def body(engine: InProcessEngine, hold: bool):
        parameters = make_parameters()
        request = Compression.covap(3, shard=False, hold_unsent=hold)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, momentum=0.9, weight_decay=0.1)
        moved = []
        for step in range(7):
            before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            backward(parameters, engine.rank, step)
            optimizer.step()
            moved.append(
                [any(not torch.equal(before[n], parameters[n]) for n in names) for names in of(optimizer).decisions]
            )
            optimizer.zero_grad(set_to_none=set_to_none)
        return moved, [p.detach().clone() for p in parameters.values()]

    for moved, _ in run_ranks(2, partial(body, hold=True)):
        assert moved == [[(number + step) % 3 == 0 for number in range(3)] for step in range(7)]
    for moved, _ in run_ranks(2, partial(body, hold=False)):
        assert moved[-1] == [True] * 3


def test_a_filtered_compression_must_be_the_same_in_each_step() -> None:
    with pytest.raises(ConfigError, match=r"sent = .* must be a compression whose every step is alike"):
        Compression.covap(4, sent=Compression.auto())
    with pytest.raises(ConfigError, match=r"must be a compression whose every step is alike"):
        Compression.covap(4, sent=0.01)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"feedback = 0.5 is not \(initial, every, growth\)"):
        Compression.covap(4, feedback=0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"PowerSGD.* which shards would cut: pass shard=False"):
        Compression.covap(4, sent=Compression.powersgd(4))
    assert Compression.covap(4, sent=Compression.powersgd(4), shard=False).policy == Covap(4, shard=False)
    with pytest.raises(ConfigError, match="shard = 3 is neither True nor False"):
        Compression.covap(4, shard=3)  # type: ignore[arg-type]


def test_what_sends_shards_keeps_its_engine_unless_another_is_asked_for() -> None:
    sent = Compression.int8().by(engine="mpi", device="cpu")
    kept = Compression.covap(4, sent=sent)
    assert (kept.engine, kept.device, kept.compressor) == ("mpi", "cpu", sent.compressor)
    assert Compression.covap(4, sent=sent).by(engine="horovod").engine == "horovod"


def test_the_coefficient_is_that_of_the_paper() -> None:
    schedule = Compression.covap(4, feedback=(0.5, 50, 0.1)).feedback
    assert [schedule.coefficient(step) for step in (0, 49, 50, 149, 250, 10**6)] == [0.5, 0.5, 0.6, 0.7, 1.0, 1.0]
    assert Compression.covap(4).feedback.keeps_all
    assert Compression.covap(4).with_feedback().feedback == FeedbackSchedule(0.5, 0.1, 50)


def test_float64_is_sent_in_each_step() -> None:
    parameters = make_parameters(dtype=torch.float64)
    optimizer = make_optimizer(parameters, REQUEST, alone, 0, 1)
    for step in range(3):
        backward(parameters, 0, step)
        optimizer.synchronize()
        use(parameters.values())
        assert all(parameter.grad.any() for parameter in parameters.values())
        optimizer.zero_grad()


@pytest.mark.parametrize("shard", [True, False])
def test_what_is_sent_in_turn_is_no_plan(shard: bool, tmp_path: FilePath) -> None:
    parameters, optimizer = on_engine(alone(), Compression.covap(4, shard=shard))
    backward(parameters, 0, 0)
    optimizer.step()
    with pytest.raises(UsageError, match=r"not all of it is sent in the coming step.*pass Compression.covap"):
        of(optimizer).save_plan(tmp_path / "plan.json")


def test_what_sends_all_in_each_step_is_a_plan(tmp_path: FilePath) -> None:
    parameters, optimizer = on_engine(alone(), Compression.covap(1))
    backward(parameters, 0, 0)
    optimizer.step()
    of(optimizer).save_plan(tmp_path / "plan.json")
    assert {entry.collective for entry in plan_schema.read(tmp_path / "plan.json").buckets} == {"dense"}


def test_decisions_that_take_turns_are_told_once(tmp_path: FilePath) -> None:
    """A bucket is sent in every second step, and its window says so."""

    def body(engine: InProcessEngine) -> None:
        settings = Settings(600, 60, log=tmp_path / "log.jsonl")
        parameters, optimizer = on_engine(engine, Compression.covap(2, shard=False), settings=settings)
        for step in range(12):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        optimizer._reducer.close()

    run_ranks(2, body)
    events = events_of(tmp_path / "log.jsonl")
    told = Counter((event.bucket, event.candidate) for event in events if event.kind == "choice")
    assert told == {(number, candidate): 1 for number in range(3) for candidate in ("dense", "skip")}
    windows = [event for event in events if event.kind == "window"]
    assert {(event.candidate, event.wire_ratio) for event in windows} == {("dense", 0.5)}


def test_a_timeline_says_which_shard_was_sent() -> None:
    facts = Turn(Cast(), Path("dense"), shard=Shard(1, 4)).facts()
    assert facts == {"candidate": "dense, shard 2 of 4", "ratio": 1.0, "device": "cpu"}
    assert Turn(Cast(), SKIP).facts()["candidate"] == "skip"


def test_what_an_earlier_version_has_pickled_can_be_read() -> None:
    """The state of DDP's hook holds what was asked for, and its class by name."""
    pickled = pickle.dumps(Compression.covap(4), protocol=0)
    assert b"hvd_compress.papers.covap.settings" in pickled
    earlier = pickled.replace(b"hvd_compress.papers.covap.settings", b"hvd_compress.policies.covap_settings")
    assert pickle.loads(earlier) == Compression.covap(4)


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "4"])
def test_an_interval_is_a_number_of_steps(interval: object) -> None:
    with pytest.raises(ConfigError, match=r"interval = .* is not a whole number of steps"):
        Covap(interval)  # type: ignore[arg-type]
