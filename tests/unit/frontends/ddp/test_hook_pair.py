"""The pair (state, hook) of DDP's own convention trains as compress() does, and its state can be pickled."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_compress
import hvd_compress.ddp as hc
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from tests.harness import remembered
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import (
    REQUESTS,
    Needing,
    check_ranks_equal,
    compressed,
    flat,
    loss_of,
    make_model,
    optimizer_of,
    train,
)


def registered(model: torch.nn.Module, pair: tuple[object, object]) -> DistributedDataParallel:
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.004)
    ddp.register_comm_hook(*pair)
    return ddp


def test_it_trains_as_compress_does() -> None:
    run_ranks(compare, ranks=2)


def compare(rank: int) -> None:
    trained = []
    for ddp in (compressed(make_model(), "int4"), registered(make_model(), hc.hook(REQUESTS["int4"]))):
        train(ddp, optimizer_of(ddp), rank, range(5))
        check_ranks_equal(ddp, "pair")
        assert hc.of(ddp).last_step.step == 4
        assert [name for names in hc.of(ddp).decisions for name in names].count("0.weight") == 1, (
            "parameters have names"
        )
        trained.append(flat(ddp))
    assert torch.equal(*trained)
    first = registered(make_model(), hc.hook(REQUESTS["int4"]))
    assert (hc.of(first).last_step, hvd_compress.of(first).metrics()) == (None, {}), "known before its first step"
    assert hc.compress(first, REQUESTS["int4"]) is first
    with pytest.raises(UsageError, match="is compressed already"):
        hc.compress(first, REQUESTS["int8"])
    train(first, optimizer_of(first), rank, range(5))
    assert torch.equal(flat(first), trained[0])


def test_a_pickled_state_goes_on() -> None:
    run_ranks(resume, ranks=2)


def resume(rank: int) -> None:
    for name in ("int4", "powersgd"):
        state, hook = hc.hook(REQUESTS[name])
        before = pickle.loads(pickle.dumps(state))  # nothing is remembered yet
        going = registered(make_model(), (before, hook))
        optimizer = optimizer_of(going)
        train(going, optimizer, rank, range(3))
        kept, model, momentum = pickle.dumps(before), going.module.state_dict(), optimizer.state_dict()
        model = {key: value.clone() for key, value in model.items()}
        again = registered(make_model(1), (pickle.loads(kept), hook))
        again.module.load_state_dict(model)
        others = optimizer_of(again)
        others.load_state_dict(pickle.loads(pickle.dumps(momentum)))
        residuals = remembered(hc.state_dict(again))["residuals"]
        assert any(bool(each.any()) for each in residuals.values())
        train(going, optimizer, rank, range(3, 6))
        train(again, others, rank, range(3, 6))
        assert hc.of(again).last_step.step == 5
        assert torch.equal(flat(going), flat(again)), name


def test_a_pair_of_two_models() -> None:
    run_ranks(of_two, ranks=2)


def of_two(rank: int) -> None:
    """Whether they meet before the first step or behind it; and what was refused stays so."""
    words = r"is registered with two models, .*call hook\(\) for each"
    pair = hc.hook(REQUESTS["int4"])
    first, second = (registered(make_model(), pair) for _ in range(2))
    with pytest.raises(UsageError, match=words):
        loss_of(first, rank, 0).backward()
    pair = hc.hook(REQUESTS["int4"])
    first = registered(make_model(), pair)
    train(first, optimizer_of(first), rank, range(2))
    second = registered(make_model(), pair)
    with pytest.raises(UsageError, match=words):
        hvd_compress.of(second).metrics()
    with pytest.raises(ConfigError, match=r"that the same pair of hook\(\) is registered with"):
        loss_of(second, rank, 0).backward()
    state = pickle.loads(pickle.dumps(pair[0]))
    other = registered(torch.nn.Linear(13, 3), (state, pair[1]))
    with pytest.raises(ConfigError, match="there is no such parameter"):
        loss_of(other, rank, 0).backward()
    with pytest.raises(CommunicationError, match=r"earlier exchange failed: .*there is no such parameter"):
        loss_of(other, rank, 1)


class Proxy:
    """As weakref.proxy() of what is gone, or a module's attribute that torch has deprecated."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise ReferenceError("asked for its class")


def test_it_asks_nothing_of_other_objects() -> None:
    run_ranks(pass_over, ranks=1)


def pass_over(_: int) -> None:
    """In the first backward pass the model is looked for among all objects."""
    proxies = [Proxy()]
    assert any(each is proxies[0] for each in gc.get_objects())
    ddp = registered(make_model(), hc.hook(REQUESTS["int4"]))
    loss_of(ddp, 0, 0).backward()
    assert hc.of(ddp).last_step.step == 0


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match=r"Compression.int4 is a function"):
        hc.hook(hc.Compression.int4)
    with pytest.raises(UnsupportedError, match=r"needs hvd_compress.torch's optimizer, as a test says so"):
        hc.hook(replace(REQUESTS["int4"], policy=Needing()))
    run_ranks(refuse, ranks=1)


def refuse(_: int) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 2))
    ddp = registered(model, hc.hook(REQUESTS["int4"]))
    with pytest.raises(UnsupportedError, match="'0' has sparse gradients"):
        ddp(torch.tensor([1])).sum().backward()
    ddp = registered(make_model(), hc.hook(REQUESTS["int4"]))
    gc.freeze()
    with pytest.raises(UsageError, match=r"after gc.freeze\(\): call compress\(model, ...\)"):
        loss_of(ddp, 0, 0).backward()
    gc.unfreeze()
