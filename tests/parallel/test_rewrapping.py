"""Another optimizer over the same parameters in the middle of training, while the old one is still alive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import hvd_compress.torch as hvd
from hvd_compress.errors import UnsupportedError, UsageError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from tests.harness import REQUESTS, remembered
from tests.parallel.training import (
    EXACT,
    STEPS,
    Make,
    assert_same_on_all_ranks,
    batch,
    check_against_horovod,
    finish,
    flat,
    loss,
    maker,
    on_engine,
    residuals,
    sgd,
    small_model,
    train,
)

FIRST, SECOND = range(STEPS), range(STEPS, 2 * STEPS)


@pytest.mark.parametrize("compression", [hvd.Compression.none, EXACT["dense"]], ids=["stock", "dense"])
@pytest.mark.parametrize("wrapped_by", [hvd.Compression.none, hvd.Compression.topk(0.1)], ids=["Horovod's", "ours"])
def test_an_optimizer_that_is_wrapped_already(wrapped_by: Any, compression: Any) -> None:
    model = small_model()
    optimizer = maker(wrapped_by)(sgd(model), model)
    with pytest.raises(
        UsageError, match=r"distributed already: pass the torch optimizer .*make a new SGD over the same"
    ):
        maker(compression)(optimizer, model)
    finish(train(optimizer, model))
    assert_same_on_all_ranks(flat(model.parameters()))


@pytest.mark.parametrize("order", ["state first", "state last"])
@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "efsign", "dense"])
def test_a_new_optimizer_goes_on_where_the_old_one_was(name: str, order: str, engine: str) -> None:
    """As the errors say: a new torch optimizer, wrapped, with the state of the old one, which a scheduler holds."""
    compression = on_engine(REQUESTS[name], engine)

    def run(anew: bool) -> torch.Tensor:
        model = small_model()
        optimizer = maker(compression)(sgd(model), model)
        scheduler = StepLR(optimizer, step_size=3, gamma=0.5)
        for _ in train(optimizer, model, FIRST):
            scheduler.step()
        if anew:
            old, state = scheduler, optimizer.state_dict() if order == "state first" else None
            new = maker(compression)(sgd(model), model)
            scheduler = StepLR(new, step_size=3, gamma=0.5)
            new.load_state_dict(state or optimizer.state_dict())
            scheduler.load_state_dict(old.state_dict())
            with pytest.raises(UsageError, match=r"step\(\) of an optimizer that was replaced"):
                old.optimizer.step()
            optimizer = new
        for _ in train(optimizer, model, SECOND):
            scheduler.step()
        return flat([*model.parameters(), *remembered(optimizer.state_dict()["hvd_compress"])["residuals"].values()])

    assert torch.equal(run(anew=True), run(anew=False))


CHANGES = {
    "from Horovod's": (lambda make: maker(hvd.Compression.none), lambda make: make),
    "to Horovod's": (lambda make: make, lambda make: maker(hvd.Compression.none)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_compression_while_training(change: str) -> None:
    """With what loses nothing all of it is as if nothing had changed, and the old one refuses."""

    def scenario(make: Make) -> Any:
        model = small_model()
        old = CHANGES[change][0](make)(sgd(model), model)
        finish(train(old, model, FIRST))
        new = CHANGES[change][1](make)(sgd(model), model)
        new.load_state_dict(old.state_dict())
        finish(train(new, model, SECOND))
        with pytest.raises(UsageError, match="was replaced"):
            old.step()
        assert isinstance(new, ReducingOptimizer) or isinstance(old, ReducingOptimizer)
        return model.parameters()

    def unchanged(make: Make) -> Any:
        model = small_model()
        finish(train(make(sgd(model), model), model, range(2 * STEPS)))
        return model.parameters()

    expected = flat(unchanged(maker(hvd.Compression.none)))
    for compression in EXACT.values():
        trained = flat(scenario(maker(compression)))
        torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
        assert_same_on_all_ranks(trained)


def partly_frozen() -> nn.Sequential:
    model = small_model()
    model[0].requires_grad_(False)
    return model


def test_unfreezing_equals_horovods() -> None:
    def scenario(make: Make) -> Any:
        model = partly_frozen()
        old = make(sgd(model), model)
        finish(train(old, model, FIRST))
        model.requires_grad_(True)
        state = old.state_dict()
        new = make(sgd(model), model)
        new.load_state_dict(state)
        finish(train(new, model, SECOND))
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "efsign", "dense"])
def test_the_error_after_unfreezing_names_what_works(name: str, engine: str) -> None:
    """Done as it is printed, right after it has been printed."""
    model = partly_frozen()
    make = maker(on_engine(REQUESTS[name], engine))
    optimizer = make(sgd(model), model)
    old = StepLR(optimizer, step_size=100)
    finish(train(optimizer, model, FIRST))
    before = flat(model[0].parameters())

    model.requires_grad_(True)
    optimizer.zero_grad()
    with pytest.raises(
        UnsupportedError,
        match=r"parameter '0\.\w+' is trained now, .*state = optimizer\.state_dict\(\); make a new SGD over the same "
        r"parameter groups.*hvd\.DistributedOptimizer\(\).*load_state_dict\(state\).*old schedulers'",
    ):
        loss(model, STEPS).backward()

    state = optimizer.state_dict()
    saved = remembered(state["hvd_compress"])["residuals"]
    optimizer = make(sgd(model), model)
    optimizer.load_state_dict(state)
    kept = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    assert not saved or kept.keys() > saved.keys(), "zeros of what is trained now, too"
    assert all(torch.equal(kept[key], saved.get(key, torch.zeros_like(kept[key]))) for key in kept)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in train(optimizer, model, SECOND):
        scheduler.step()
        assert_same_on_all_ranks(flat(model.parameters()))
    assert hvd.of(optimizer).last_step.step == 2 * STEPS - 1
    assert not torch.equal(flat(model[0].parameters()), before)
    with pytest.raises(UsageError, match="was replaced"):
        old.optimizer.step()


def test_what_is_remembered_of_a_parameter_waits_while_it_is_frozen(engine: str) -> None:
    """One layer is frozen as another is unfrozen, and the other way round later."""
    model = partly_frozen()
    make = maker(hvd.Compression.topk(0.05).by(engine=engine))
    optimizer = make(sgd(model), model)
    finish(train(optimizer, model, FIRST))
    before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    assert before.keys() == {"2.weight", "2.bias"}
    for first in (True, False):
        model[0].requires_grad_(first)
        model[2].requires_grad_(not first)
        state = optimizer.state_dict()
        optimizer = make(sgd(model), model)
        optimizer.load_state_dict(state)
        kept = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
        assert all(torch.equal(kept[name], before[name]) for name in before)
        if first:
            finish(train(optimizer, model, SECOND))
    finish(train(optimizer, model, range(2 * STEPS, 3 * STEPS)))
    assert_same_on_all_ranks(flat(model.parameters()))
    assert residuals(optimizer).any()


def test_parameters_are_added_while_training(exact: Request) -> None:
    """As the error of add_param_group() says."""

    def run(make: Make | None) -> torch.Tensor:
        """With what loses nothing, or, without, in one process on the batches of all ranks."""
        model = small_model()

        def first_half() -> torch.optim.Optimizer:
            return torch.optim.SGD(model[2].parameters(), lr=0.01, momentum=0.9)

        def go_on(optimizer: Any, steps: range) -> None:
            for step in steps:
                model.zero_grad()
                ranks = range(hvd.size()) if make is None else [hvd.rank()]
                losses = [model(batch(step, rank)).square().sum() for rank in ranks]
                (sum(losses) / len(losses)).backward()
                optimizer.step()

        optimizer: Any = first_half() if make is None else make(first_half(), model)
        go_on(optimizer, FIRST)
        if make is None:
            optimizer.add_param_group({"params": list(model[0].parameters())})
        else:
            with pytest.raises(UnsupportedError, match=r"new torch optimizer over the old parameters.*state_dict\(\)"):
                optimizer.add_param_group({"params": list(model[0].parameters())})
            plain = first_half()
            plain.load_state_dict(optimizer.state_dict())
            plain.add_param_group({"params": list(model[0].parameters())})
            optimizer = make(plain, model)
        go_on(optimizer, SECOND)
        return flat(model.parameters())

    torch.testing.assert_close(run(maker(exact)), run(None), rtol=1e-5, atol=1e-6)
