"""Steps that are trained with every ratio and taken back: nothing of them may remain but what they have shown."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_compress import of
from hvd_compress.collectives import ARTopk
from hvd_compress.compression import Compression
from hvd_compress.compressors import TopK
from hvd_compress.cost import paths
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.papers.flexible.policy import FlexiblePolicy
from hvd_compress.policies import FixedPolicy
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import flat_residual, make_optimizer

SETTINGS = Settings(fusion_threshold_bytes=20_000, timeout_s=60, adapt=True, calibration_s=0.0)
LOCK = threading.Lock()
"""Generators are those of the process, which ranks share here: each takes the next from its own by turns."""

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


class Data:
    """Batches in an order that a position and a generator give."""

    def __init__(self, seed: int) -> None:
        self.position, self.generator = 0, torch.Generator().manual_seed(seed)

    def batch(self) -> torch.Tensor:
        self.position += 1
        return torch.randn(8, 50, generator=self.generator) + self.position % 3

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.generator.set_state(state["generator"])


def training(engine: InProcessEngine, gain: str = "rollout") -> SimpleNamespace:
    """A model with buffers, momentum, and a learning rate that changes: all that must be taken back."""
    with LOCK:
        torch.manual_seed(1)
        layers = (torch.nn.Linear(50, 80), torch.nn.BatchNorm1d(80), torch.nn.ReLU(), torch.nn.Linear(80, 60))
        model = torch.nn.Sequential(*layers)
    request = Compression.flexible(0.01, 0.3, gain=gain)
    parameters = dict(model.named_parameters())
    size = engine.world_size
    optimizer = make_optimizer(
        parameters, request, lambda: engine, engine.rank, size, settings=SETTINGS, lr=0.02, momentum=0.9
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    data = Data(engine.rank)

    def step() -> None:
        optimizer.zero_grad()
        model(data.batch()).square().mean().backward()
        optimizer.step()
        schedule.step()

    return SimpleNamespace(
        model=model, optimizer=optimizer, schedule=schedule, data=data, step=step, goal=request.policy
    )


def state(run: SimpleNamespace) -> list[torch.Tensor]:
    """All that training has made, as tensors."""
    optimizer = run.optimizer
    found = [*run.model.state_dict().values(), flat_residual(optimizer, dict(run.model.named_parameters()))]
    found += [p.grad for p in run.model.parameters() if p.grad is not None]
    found += [optimizer.state[p]["momentum_buffer"] for p in run.model.parameters()]
    found += [run.data.generator.get_state(), torch.tensor([run.data.position, optimizer._reducer.session.step])]
    found.append(torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64))
    return [tensor.clone() for tensor in found]


def test_a_rollout_leaves_no_trace_but_gains() -> None:
    def body(engine: InProcessEngine):
        run = training(engine)
        done = []
        for _ in range(3):
            run.step()
            before, report = state(run), of(run.optimizer).last_step
            done.append(run.optimizer.rollout(run.step, run.model, [run.data, run.schedule], steps=3))
            after = state(run)
            assert len(before) == len(after)
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            assert of(run.optimizer).last_step is report
        events = list(of(run.optimizer).controller.history)
        ratios = [decision.ratio for decision in of(run.optimizer).decisions.values()]
        return done, events, ratios, run.goal

    ranks = run_ranks(2, body)
    done, events, ratios, goal = ranks[0]
    assert done == [True, False, False]
    assert str(ranks[1][1]) == str(events)
    assert ranks[1][2] == ratios
    rolled = [event for event in events if event.kind == "rollout"]
    assert [event.ratio for event in rolled if event.bucket == 0] == list(goal.ratios)
    for bucket in {event.bucket for event in rolled}:
        gains = [event.gain for event in rolled if event.bucket == bucket]
        assert gains == sorted(gains)
        assert 0 < gains[0] < gains[-1] <= 1
    assert {event.kind for event in events} >= {"choice", "ratio", "rollout"}


def test_training_goes_on_to_the_bit_as_if_there_had_been_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is chosen depends on times: here there is only STAR, and after the rollout nothing is chosen.

    Of two ranks' values all algorithms make the same sum.
    """
    ways = [ARTopk(TopK(0.05), paths.Path("star")), ARTopk(TopK(0.05), paths.Path("star", "ring"))]
    monkeypatch.setattr(FlexiblePolicy, "_collectives", lambda *_: ways)

    def go_on(run: SimpleNamespace) -> list[torch.Tensor]:
        session = run.optimizer._reducer.session
        session.steering.policy = FixedPolicy(Request(TopK(0.05), "star"))
        for bucket in session.buckets.every:
            bucket.decide(type(bucket.decision)(TopK(0.05), paths.Path("star")))
        for _ in range(5):
            run.step()
        return state(run)

    def body(engine: InProcessEngine, rolls_out: bool):
        run = training(engine)
        run.step()
        if rolls_out:
            assert run.optimizer.rollout(run.step, run.model, [run.data, run.schedule], steps=2)
        return go_on(run)

    with_one = run_ranks(2, lambda engine: body(engine, True))
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "fresh"))  # curves of the first run may not fit the second
    without = run_ranks(2, lambda engine: body(engine, False))
    for ours, theirs in zip(with_one, without, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_without_a_rollout_it_says_what_to_do() -> None:
    def body(engine: InProcessEngine):
        run = training(engine)
        run.step()
        with pytest.raises(UsageError, match=r"optimizer\.rollout\(step, model, data\).*gain='curve'"):
            run.step()
        return True

    assert run_ranks(2, body) == [True, True]


def test_a_step_that_is_none() -> None:
    def body(engine: InProcessEngine):
        run = training(engine)
        run.step()
        with pytest.raises(UsageError, match="takes 0 steps"):
            run.optimizer.rollout(lambda: None, run.model)
        return True

    assert run_ranks(2, body) == [True, True]


def test_arguments_that_are_none() -> None:
    def body(engine: InProcessEngine):
        run = training(engine)
        run.step()
        for arguments, words in (
            ((run.step, run.model, object()), "an object of type object cannot be taken back"),
            (("step", run.model), "must be a function"),
            ((run.step, "model"), "not a torch.nn.Module"),
        ):
            with pytest.raises(ConfigError, match=words):
                run.optimizer.rollout(*arguments)
        with pytest.raises(ConfigError, match="whole number"):
            run.optimizer.rollout(run.step, run.model, steps=0)
        return run.optimizer.rollout(run.step, run.model, (run.data, run.schedule), steps=1)

    assert run_ranks(2, body) == [True, True]


def test_until_a_rollout_comes_nothing_is_kept_of_the_steps() -> None:
    """It was asked for once, too early."""

    def body(engine: InProcessEngine):
        run = training(engine)
        assert not run.optimizer.rollout(run.step, run.model, [run.data, run.schedule])
        used = []
        for _ in range(20):
            run.step()
            used.append({str(d) for d in of(run.optimizer).decisions.values()})
        policy = of(run.optimizer).controller
        return policy._watch.recorded, len(policy._roots.tell()), used[1:] == [used[1]] * 19

    for recorded, seen, stays in run_ranks(2, body):
        assert recorded == seen == 0
        assert stays


def test_it_does_nothing_where_gains_are_read_from_curves() -> None:
    def body(engine: InProcessEngine):
        run = training(engine, "curve")
        run.step()
        return run.optimizer.rollout(run.step, run.model)

    assert run_ranks(2, body) == [False, False]


def test_what_ranks_are_comparing_is_taken_before_a_rollout_begins() -> None:
    """Afterwards the controller would take times of a network that it knows in another way."""

    def body(engine: InProcessEngine) -> list[str]:
        run = training(engine)
        run.step()
        assert run.optimizer.rollout(run.step, run.model, [run.data, run.schedule], steps=1)
        policy = run.optimizer._reducer.session.policy
        for _ in range(600):
            run.step()
            if policy._watch._agreement.under_way:
                break
        policy.due = "a test"
        assert run.optimizer.rollout(run.step, run.model, [run.data, run.schedule], steps=1)
        assert not policy._watch._agreement.under_way
        run.step()
        return [event.kind for event in of(run.optimizer).controller.history]

    kinds = run_ranks(2, body)
    assert kinds[0] == kinds[1]
    assert kinds[0].count("rollout") == 2 * kinds[0].index("ratio")


def test_ranks_that_roll_out_different_numbers_of_steps_are_told() -> None:
    """Else one would go on with the next ratio while another still trains with this one."""

    def body(engine: InProcessEngine) -> bool:
        run = training(engine)
        run.step()
        with pytest.raises(ConfigError, match=r"must be the same on all ranks, and is, by rank, \[1, 2\]"):
            run.optimizer.rollout(run.step, run.model, [run.data, run.schedule], steps=1 + engine.rank)
        return True

    assert run_ranks(2, body) == [True, True]
