"""One handle for every front end: where what earlier versions had is now, and what a rank alone answers."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

import hvd_compress
from hvd_compress import ddp, fsdp
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.optimizer.named_parameters import name_parameters
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer, wrap
from hvd_compress.settings import Settings

VERBS = [name for name in vars(Handle) if not name.startswith("_") and name not in ("alone", "follow", *ddp.__all__)]


def alone(optimizer: torch.optim.Optimizer) -> ReducingOptimizer:
    """Wrap it as on a rank outside of a process set."""
    return wrap(optimizer, name_parameters(optimizer, None), None, 1, 0, 1)


def sgd(kind: type[torch.optim.SGD] = torch.optim.SGD) -> torch.optim.SGD:
    return kind(torch.nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize("name", VERBS)
def test_what_earlier_versions_had_says_where_it_is_now(name: str) -> None:
    for asked, called in ((ddp, "hvd_compress.ddp"), (fsdp, "hvd_compress.fsdp"), (alone(sgd()), "SGD")):
        with pytest.raises(AttributeError, match=rf"{called}\.{name} is hvd_compress\.of\(\.\.\.\)\.{name} now"):
            getattr(asked, name)


def test_other_names_are_missing_as_ever() -> None:
    for asked in (ddp, fsdp, hvd_compress, alone(sgd())):
        with pytest.raises(AttributeError, match="has no attribute 'absent'"):
            asked.absent  # noqa: B018
    with pytest.raises(AttributeError, match=r"hvd_compress\.metrics is hvd_compress\.of\(\.\.\.\)\.metrics now"):
        hvd_compress.metrics  # noqa: B018


class Forwards(torch.optim.SGD):
    """An optimizer of a program's own, which finds attributes elsewhere."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"its own {name}"


def test_an_optimizer_finds_its_own_attributes() -> None:
    assert alone(sgd(Forwards)).last_step == "its own last_step"


def test_a_rank_outside_of_the_process_set_answers() -> None:
    before = set(threading.enumerate())
    optimizer = alone(sgd())
    handle = hvd_compress.of(optimizer)
    assert (handle.last_step, handle.decisions, handle.controller, handle.ccr, handle.metrics()) == (
        None, {}, None, None, {},
    )  # fmt: skip
    assert handle.gather_figures([1, 2]) == [[1.0, 2.0]]
    assert handle.gathered_state_dict() == handle.state_dict()
    handle.end_epoch()
    handle.drop_step()
    handle.follow_loss_scale(torch.amp.GradScaler("cpu"))
    with pytest.raises(UsageError, match="on a rank that exchanges nothing"):
        handle.save_plan("plan.json")
    handle.load_gathered_state_dict(of_one_rank())
    handle.follow_learning_rate(optimizer)
    workers = set(threading.enumerate()) - before
    assert workers
    del optimizer, handle
    gc.collect()
    assert not any(each.is_alive() for each in workers)


def of_one_rank() -> dict[str, Any]:
    """What the ranks of the process set have saved."""
    own = {"residuals": {"weight": torch.ones(4)}, "states": {}}
    return {"step": 3, "loss_scale": None, "buckets": [], "remembers": True, "ranks": {"rank 0 of 1": own}}


def test_nothing_is_saved_outside_of_the_process_set() -> None:
    optimizer = alone(sgd())
    assert "hvd_compress" not in optimizer.state_dict(), "there is nothing to remember"


@pytest.mark.parametrize("trained", [None, torch.nn.Linear(2, 2), sgd()], ids=["nothing", "model", "optimizer"])
def test_what_is_not_compressed(trained: object) -> None:
    with pytest.raises(UsageError, match=f"this {type(trained).__name__} is not compressed: pass the model that"):
        hvd_compress.of(trained)


def test_it_is_given_an_optimizer_of_the_model() -> None:
    model = torch.nn.Linear(2, 2)
    handle = Handle.alone(dict(model.named_parameters()), ddp.Compression.int4(), Settings(600, 60.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    handle.follow_learning_rate(optimizer)
    assert handle.session.steering.learning_rates() == [0.25]
    with pytest.raises(ConfigError, match="this SGD has no parameter of this model"):
        handle.follow_learning_rate(sgd())
    with pytest.raises(ConfigError, match="a StepLR has no learning rates"):
        handle.follow_learning_rate(torch.optim.lr_scheduler.StepLR(sgd(), 1))
