"""What a program calls, in a job of one rank; tests/jobs/test_local.py has several."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

import hvd_compress
import hvd_compress.torch as hvd
from hvd_compress.compression import Compression
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, ReplicaError, UnsupportedError, UsageError
from hvd_compress.frontends.horovod import runtime_selection
from hvd_compress.frontends.local.arguments import checked
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.local import LocalSteps, averaging, diloco
from hvd_compress.settings import Settings


def train(local: bool) -> list[torch.Tensor]:
    torch.manual_seed(4)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    around = LocalSteps(optimizer, model, every=2, start_after=1) if local else None
    for _ in range(7):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    if around is not None:
        with around.averaged():
            pass
        around.load_state_dict(around.state_dict())
        around.finish()
        assert hvd_compress.of(around) is around.handle
    return [each.detach() for each in model.parameters()]


def test_one_rank_trains_as_without_it_to_the_bit() -> None:
    hvd.init()
    assert all(map(torch.equal, train(local=True), train(local=False)))


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    with pytest.raises(ConfigError, match="pass the module that it was made from"):
        LocalSteps(optimizer, wrapped)
    monkeypatch.setattr(runtime_selection.hvd, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"hvd.init\(\) comes first"):
        LocalSteps(optimizer, model)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"every": 0}, "every = 0"),
    ({"every": "Auto"}, "every='Auto' is no number"),
    ({"start_after": -1}, "start_after = -1"),
    ({"fragments": 0}, "fragments = 0"),
    ({"fragments": 2, "every": 4, "delay": 3}, "take a delay of at most 2"),
    ({"delay": 1, "mix": 1.0}, "mix = 1"),
    ({"mix": 0.5}, "leave mix out"),
    ({"outer": "diloco"}, "no function that makes an optimizer"),
    ({"outer": torch.optim.SGD}, "no function that makes an optimizer"),
    ({"compression": Compression.auto(), "fragments": 2, "start_after": 0}, "take 30 or more, or fragments=1"),
    ({"compression": "int4"}, "'int4' is no compression"),
    ({"compression": Compression.int4}, r"call it, as in Compression.int4\(\)"),
    ({"compression": Compression.covap()}, "a round exchanges a fragment at a time"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_arguments_are_refused_by_a_single_rank_as_by_many(words: dict[str, Any], message: str) -> None:
    hvd.init()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises((ConfigError, UnsupportedError), match=message):
        LocalSteps(optimizer, model, **words)
    LocalSteps(optimizer, model)


def test_an_optimizer_that_cannot_take_local_steps_is_refused() -> None:
    hvd.init()
    model = torch.nn.Linear(3, 2)
    with pytest.raises(UnsupportedError, match="LBFGS evaluates its closure several times"):
        LocalSteps(torch.optim.LBFGS(model.parameters()), model)
    distributed = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=hvd.Compression.int4()
    )
    with pytest.raises(UsageError, match="pass the torch optimizer that it was made from"):
        LocalSteps(distributed, model)
    with pytest.raises(ConfigError, match="an optimizer of torch, then a model, and this is a Linear"):
        LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is no replica of a rank's own"):
        LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), DataParallel(model))


def test_one_rank_goes_on_from_the_anchors_of_several() -> None:
    hvd.init()
    model = torch.nn.Linear(3, 2)
    local = LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), model)
    anchors = {name: torch.full_like(each, 2.0) for name, each in model.named_parameters()}
    local.load_state_dict({"steps": 7, "rounds": {"anchors": anchors, "world_size": 4}})
    assert all((each == 2).all() for each in model.parameters())
    with pytest.raises(ConfigError, match="this is not the state of LocalSteps"):
        local.load_state_dict({"step": 3, "ranks": {}})


def in_ranks(body: Callable[[LocalSteps, torch.nn.Module, Callable[[int], None], int], Any], **words: Any) -> None:
    """Run it on two ranks, with a function that takes a number of steps."""

    def whole(engine: Engine) -> None:
        model = torch.nn.Linear(3, 2)
        for each in model.parameters():
            each.data.fill_(0.3)  # ranks are threads, which share random numbers
        if words.get("differs"):
            model.bias.data[1] += engine.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mine = dict(model.named_parameters())
        replicas = Replicas(mine, lambda *_: engine, engine.rank, engine.world_size, Settings())
        outer = diloco if words.get("outers") and engine.rank else averaging
        local = LocalSteps(optimizer, replicas, every=4, start_after=0, outer=outer, deadline_s=words.get("deadline_s"))

        def take(count: int) -> None:
            for step in range(count):
                optimizer.zero_grad()
                model(torch.full((5, 3), float(step + engine.rank))).square().sum().mul(1e-3).backward()
                optimizer.step()

        body(local, model, take, engine.rank)
        local.handle.session.close()
        everywhere = engine.allgather_json([each.tolist() for each in model.parameters()])
        assert everywhere[0] == everywhere[1]

    run_ranks(2, whole)


@pytest.mark.parametrize("counts", [(0, 7), (7, 0), (0, 0), (3, 9)])
def test_a_rank_may_have_no_batch(counts: tuple[int, int]) -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        take(counts[rank])
        local.finish()

    in_ranks(body)


def test_ranks_that_begin_with_other_parameters_are_told() -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        with pytest.raises(ReplicaError, match=r"of rank 1 that are not those of rank 0, 'bias'.*broadcast_parameters"):
            take(1)
        model.bias.data.fill_(0)

    in_ranks(body, differs=True)


def test_ranks_of_other_outer_optimizers_are_told() -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        with pytest.raises(ConfigError, match=r"'momentum': 0\.9"):
            take(1)

    in_ranks(body, outers=True)


def test_a_checkpoint_of_a_round_without_its_place_is_told() -> None:
    """The parameters of each rank are its own there."""
    models: dict[int, Any] = {}

    def save(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        take(6)
        models[rank] = copy.deepcopy(model.state_dict())
        local.finish()

    def load(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        model.load_state_dict(models[rank])
        with pytest.raises(ReplicaError, match=r"load what local.state_dict\(\) gave on each rank"):
            take(1)
        model.load_state_dict(models[0])

    in_ranks(save)
    in_ranks(load)


def test_steps_within_averaged_are_refused_and_training_goes_on_after_it() -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        take(2)
        with local.averaged(), pytest.raises(UsageError, match="train when it is over"):
            take(1)
        take(3)
        local.finish()

    in_ranks(body)


def test_where_each_rank_takes_as_many_steps_as_it_can_none_asks_in_the_middle() -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        take(2)
        with (
            pytest.raises(UsageError, match=r"with deadline_s each takes as many .* evaluate after it"),
            local.averaged(),
        ):
            pass
        local.finish()

    in_ranks(body, deadline_s=60.0)


def test_a_step_does_not_begin_where_ranks_are_to_meet() -> None:
    over: list[str] = []

    def require_together() -> None:
        if over:
            raise CommunicationError(over[0])

    def body(engine: Engine) -> None:
        parameter = torch.zeros(3, requires_grad=True)
        replicas = Replicas(
            {"w": parameter}, lambda *_: engine, engine.rank, 2, Settings(), require_together=require_together
        )
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        local = LocalSteps(optimizer, replicas, every=9, start_after=0)
        parameter.grad = torch.ones(3)
        optimizer.step()
        engine.allgather_json(0)
        over.append("process 7 has ended")
        before = parameter.tolist()
        with pytest.raises(CommunicationError, match="process 7 has ended"):
            optimizer.step()
        assert parameter.tolist() == before
        local.handle.session.close()

    run_ranks(2, body)


def test_buffers_of_a_rank_that_are_not_finite_do_not_count() -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        take(4)
        kept = [torch.tensor([1.0, 3.0]), torch.tensor([torch.nan, 2.0]) if rank else torch.tensor([4.0, 5.0])]
        local.handle.session.gathering.mean(kept)
        assert [each.tolist() for each in kept] == [[1, 3], [4, 5]]
        local.finish()

    in_ranks(body)


def test_an_outer_optimizer_has_the_settings_of_the_program_after_a_checkpoint() -> None:
    def body(local: LocalSteps, model: torch.nn.Module, take: Callable[[int], None], rank: int) -> None:
        take(4)
        state = copy.deepcopy(local.state_dict())
        (state["rounds"]["outer"][0]["param_groups"][0])["lr"] = 0.25
        local.load_state_dict(state)
        assert local.state_dict()["rounds"]["outer"][0]["param_groups"][0]["lr"] == 1
        take(4)
        local.finish()

    in_ranks(body)


def test_local_steps_do_not_advise_local_steps() -> None:
    asked = Compression.auto("any")
    assert asked.policy.weighs_local_steps  # type: ignore[union-attr]
    assert not checked(asked).policy.weighs_local_steps  # type: ignore[union-attr]
