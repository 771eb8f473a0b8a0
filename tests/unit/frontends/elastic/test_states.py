"""What a program's state takes, and when copies are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_compress import elastic
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.alike import require_alike
from hvd_compress.frontends.elastic import copies, run, states, trained
from hvd_compress.frontends.elastic.copies import Copies
from hvd_compress.local import LocalSteps
from hvd_compress.membership.kept import Kept

RANKS = [
    ("rank 0 of 2", {"w": torch.tensor([1.0, 2.0])}),
    ("rank 1 of 2", {"w": torch.tensor([4.0, 8.0]), "v": torch.ones(1)}),
]


def of(name: str, residuals: dict[str, torch.Tensor]) -> dict[str, Any]:
    own = {"residuals": residuals, "states": {"powersgd.q": {"w": torch.eye(2)}, "gradient:velocity": dict(residuals)}}
    return {"step": 7, "loss_scale": None, "buckets": [], "choice": "", "remembers": True, "ranks": {name: own}}


HANDLE: Any = SimpleNamespace(debts=lambda kinds: ["gradient:velocity"])


class Alone:
    """What a state asks of the runtime, of a job of one rank."""

    @staticmethod
    def rank() -> int:
        return 0

    @staticmethod
    def size() -> int:
        return 1

    @staticmethod
    def allgather_object(each: Any, name: str) -> list[Any]:
        return [each]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copies, states, trained):
        monkeypatch.setattr(module, "hvd", Alone)


def test_a_rank_takes_over_what_several_owed() -> None:
    first, second = (of(*each) for each in RANKS)
    found = trained.together([first, second], first, HANDLE)
    (name,) = found["ranks"]
    assert name == "rank 0 of 1"
    own = found["ranks"][name]
    assert {key: each.tolist() for key, each in own["residuals"].items()} == {"w": [5.0, 10.0], "v": [1.0]}
    assert torch.equal(own["states"]["powersgd.q"]["w"], torch.eye(2))
    assert own["states"]["gradient:velocity"]["w"].tolist() == [5.0, 10.0]
    assert (found["step"], found["remembers"]) == (7, True)
    assert first["ranks"]["rank 0 of 2"]["residuals"]["w"].tolist() == [1.0, 2.0]


def test_a_rank_that_takes_over_nothing_owes_nothing() -> None:
    found = trained.together([], of(*RANKS[0]), HANDLE)
    assert found["ranks"]["rank 0 of 1"]["residuals"] == {}
    assert found["ranks"]["rank 0 of 1"]["states"].keys() == {"powersgd.q", "gradient:velocity"}
    assert found["ranks"]["rank 0 of 1"]["states"]["gradient:velocity"] == {}
    assert not found["remembers"]


def test_a_scheduler_goes_on_turning_what_was_loaded() -> None:
    optimizer = torch.optim.Adam([torch.ones(3, requires_grad=True)], lr=0.5)
    saved = torch.optim.Optimizer.state_dict(optimizer)
    saved["param_groups"][0]["lr"] = 0.25
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    (group,) = optimizer.param_groups
    trained.load(optimizer, saved)
    assert optimizer.param_groups[0] is group
    assert group["lr"] == 0.25
    optimizer.step()
    scheduler.step()
    assert group["lr"] == 0.125


def test_a_part_of_an_optimizer_is_no_state() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    optimizer.consolidate_state_dict = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="take the optimizer itself"):
        elastic.TorchState(None, optimizer)


def test_local_steps_are_not_brought_back(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    monkeypatch.setattr(states, "local_steps_of", lambda each: each)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    with pytest.raises(UnsupportedError, match="local steps leave each rank with a model of its own"):
        elastic.TorchState(None, optimizer)


def test_local_steps_that_were_made_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    trains = trained.Trained(None, optimizer)
    monkeypatch.setattr(trained, "takes_local_steps", lambda each: each is optimizer)
    with pytest.raises(UsageError, match="LocalSteps was made after TorchState"):
        trains.sync(0, whole=True)


def test_what_a_state_has_already_is_no_name_of_an_attribute() -> None:
    for attributes in ({"steps": 0}, {"copies": 1}, {"position": torch.nn.Linear(1, 1)}):
        with pytest.raises(ConfigError, match="is a name that TorchState has itself: give it another"):
            elastic.TorchState(**attributes)


def test_local_steps_go_on_with_their_optimizer() -> None:
    local = LocalSteps.__new__(LocalSteps)
    for attributes in ({"optimizer": local}, {"local": local}):
        with pytest.raises(UsageError, match="goes on with the optimizer that it was made of"):
            elastic.TorchState(None, **attributes)


def test_gradients_of_a_step_that_failed_are_unscaled_once_more() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    state = elastic.TorchState(None, optimizer, scaler=scaler)

    def fails(*_: object) -> None:
        raise CommunicationError("a rank has ended")

    hook = optimizer.register_step_pre_hook(fails)
    parameter.grad = torch.full((1,), 4.0)
    scaler.scale(torch.ones(1))
    with pytest.raises(CommunicationError):
        scaler.step(optimizer)
    hook.remove()
    state.reset()
    parameter.grad = torch.full((1,), 4.0)
    scaler.step(optimizer)
    scaler.update()
    assert (parameter.item(), scaler.get_scale()) == (0.5, 8.0)


def test_a_scaler_that_was_loaded_and_has_scaled_nothing_yet() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.load_state_dict({**scaler.state_dict(), "scale": 4.0})
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    elastic.TorchState(None, optimizer, scaler=scaler).on_reset()
    assert scaler.get_scale() == 4.0


def test_what_ranks_have_not_alike_is_named() -> None:
    alike = {"hvd_compress": "1", "compression": "int4()", "the model": "3 parameters"}
    require_alike([alike, dict(alike)], 0, 1)
    with pytest.raises(
        ConfigError, match=r"this rank, 1, .*: compression is int4\(\) on rank 0, and int8\(\) on rank 1\. Have the "
    ):
        require_alike([alike, {**alike, "compression": "int8()"}], 0, 1)
    with pytest.raises(
        CommunicationError, match=r"ranks \[0\] are refused: local steps is None on rank 1, and every=4"
    ):
        require_alike([{**alike, "local steps": "every=4"}, alike], 1, 1)


@pytest.mark.parametrize("helped", [frozenset(), frozenset({"process 7"})])
def test_who_has_handed_over_and_comes_once_more_owes_nothing(
    monkeypatch: pytest.MonkeyPatch, helped: frozenset[str]
) -> None:
    """The meeting in which it handed over was over before it had gone."""
    calls: list[str] = []
    member = SimpleNamespace(name="process 7", leaving="", trains=lambda: calls.append("trains"))

    class Owing(elastic.State):
        def forget_owed(self) -> None:
            calls.append("forgets")

        def end_round(self) -> None:
            calls.append("exchanges")

    def told(own: Any, name: str) -> list[Any]:
        return [own, replace(own, name="process 8", helped=helped)]

    monkeypatch.setattr(run, "known", lambda: member)
    monkeypatch.setattr(run, "hvd", SimpleNamespace(rank=lambda: 0, size=lambda: 2, allgather_object=told))
    run._meet(Owing(), False, set())
    assert calls == ["forgets"] * bool(helped) + ["exchanges", "trains"]


class Program:
    """A state that notes what becomes of it."""

    def __init__(self) -> None:
        self.kept = 0
        self.unpacked: list[Any] = []
        self.packs: Callable[[], object] = lambda: None

    def packed(self, whole: bool) -> dict[str, Any]:
        assert whole
        self.kept += 1
        self.packs()
        return {"count": self.kept}

    def unpack(self, whole: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        self.unpacked.append((whole, own))


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[[], Copies]:
    for name, value in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"), ("TORCHELASTIC_USE_AGENT_STORE", "False")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(copies, "Kept", lambda _: Kept(0, [tmp_path]))
    monkeypatch.setattr(Kept, "remove_with_agent", lambda _: None)
    return Copies


def test_copies_take_a_hundredth_of_the_time(begin: Callable[[], Copies], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of 2 s, and steps of 10 s at first, then of 1 s: the second copy waits for 200 s of steps."""
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    one, program = begin(), Program()
    program.packs = lambda: now_s.__setitem__(0, now_s[0] + 2.0)
    found = []
    for step in range(1, 600):
        now_s[0] += 10.0 if step <= 2 else 1.0
        before = program.kept
        one.commit(program)
        found += [step] * (program.kept - before)
    assert found == [2, 202, 402]


def test_the_next_process_goes_on_from_the_last_copy(begin: Callable[[], Copies]) -> None:
    one, program = begin(), Program()
    assert not one.restore(program)
    one.commit(program)
    one.commit(program)
    again, other = begin(), Program()
    assert again.restore(other)
    assert other.unpacked == [({"count": 1}, [{"count": 1}])]
    other.kept = 10
    again.commit(other)
    again.commit(other)
    third = Program()
    assert begin().restore(third)
    assert third.unpacked == [({"count": 11}, [{"count": 11}])]
    third.kept = 20
    again.finish(third)
    fourth = Program()
    assert begin().restore(fourth), "it has ended, and so would whoever is started now"
    assert fourth.unpacked == [({"count": 21}, [{"count": 21}])]


def test_training_goes_on_where_there_is_no_memory(
    begin: Callable[[], Copies], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, program = begin(), Program()
    one.commit(program)
    one.commit(program)

    def fails(*_: object) -> None:
        raise ConfigError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(Kept, "keep", fails)
        while program.kept < 2:
            one.commit(program)
        while program.kept < 4:
            one.commit(program)
    assert caplog.text.count("training goes on without a new copy in memory: rank 0: no room") == 1
    again = Program()
    assert begin().restore(again)
    assert again.unpacked[0][0] == {"count": 1}


def test_a_store_in_which_others_have_left_addresses_is_refused(
    begin: Callable[[], Copies], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ConfigError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        begin()
