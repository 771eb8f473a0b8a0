"""What a program calls, in a job of one rank; tests/jobs/test_local.py has several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

import hvd_compress
import hvd_compress.torch as hvd
from hvd_compress.compression import Compression
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.horovod import runtime_selection
from hvd_compress.frontends.local.arguments import checked
from hvd_compress.local import LocalSteps


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


def test_local_steps_do_not_advise_local_steps() -> None:
    asked = Compression.auto("any")
    assert asked.policy.weighs_local_steps  # type: ignore[union-attr]
    assert not checked(asked).policy.weighs_local_steps  # type: ignore[union-attr]
