"""What Horovod's optimizer supports, done with what loses nothing: stock Horovod must come to the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.request.request import Request
from tests.parallel.training import (
    STEPS,
    Make,
    assert_same_on_all_ranks,
    check_against_horovod,
    finish,
    flat,
    loss,
    maker,
    sgd,
    small_model,
    train,
)


@pytest.mark.parametrize(
    "options",
    [
        {"op": hvd.Sum},
        {"op": hvd.Average},
        {"gradient_predivide_factor": 3.0},
        {"groups": 1},
        {"groups": 2},
        {"groups": 3},
        {"sparse_as_dense": True},
    ],
    ids=str,
)
def test_option(options: dict[str, Any]) -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model, lr=0.003), model, **options)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.filterwarnings("ignore:Parameter `num_groups`:DeprecationWarning")
def test_num_groups() -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model, num_groups=2)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


def test_groups_of_parameters_travel_together() -> None:
    """First and last parameter in one group, which no order of readiness would bring together."""

    def scenario(make: Make):
        model = small_model()
        first, *_, last = model.parameters()
        optimizer = make(sgd(model), model, groups=[[first, last]])
        finish(train(optimizer, model))
        made.append(optimizer)
        return model.parameters()

    made: list[Any] = []
    check_against_horovod(scenario)
    together = [set(names) for names in hvd.of(made[1]).decisions]
    assert any({"0.weight", "2.bias"} <= names for names in together)


def test_backward_passes_per_step() -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model, backward_passes_per_step=2)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, 2 * step).backward()
            loss(model, 2 * step + 1).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


def test_backward_passes_that_change() -> None:
    """set_backward_passes_per_step() between steps, and a step that comes before all of its passes."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model)
        number = 0
        for allowed, passes in [(1, 1), (3, 3), (3, 2), (2, 2), (1, 1)]:
            optimizer.set_backward_passes_per_step(allowed)
            optimizer.zero_grad()
            for _ in range(passes):
                loss(model, number).backward()
                number += 1
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


def test_clipping_between_synchronize_and_step() -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model)
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.synchronize()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            with optimizer.skip_synchronize():
                optimizer.step()
        assert min(norms) > 0.5, "nothing is clipped"
        return [*norms, *model.parameters()]

    check_against_horovod(scenario)


@pytest.mark.parametrize("clear", ["to none", "to zero", "never"])
def test_clearing_gradients_through_the_model(clear: str) -> None:
    """Or not at all: then the next backward pass adds to what was reduced."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model, lr=0.001), model)
        for step in range(STEPS):
            if clear != "never":
                model.zero_grad(set_to_none=clear == "to none")
            loss(model, step).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("request_name", ["topk", "efsign", "dense"])
def test_clearing_gradients_to_none_or_zero_is_the_same(request_name: str, engine: str) -> None:
    """Horovod's own zero_grad() knows no set_to_none, so the two are compared with each other."""

    def run(set_to_none: bool) -> torch.Tensor:
        model = small_model()
        optimizer = maker(getattr(hvd.Compression, request_name)().by(engine=engine))(sgd(model), model)
        for step in range(STEPS):
            loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            assert all((p.grad is None) if set_to_none else not p.grad.any() for p in model.parameters())
        return flat(model.parameters())

    assert torch.equal(run(True), run(False))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(OPTIMIZERS[name](model.parameters()), model)
        assert isinstance(optimizer, type(OPTIMIZERS[name](model.parameters())))
        finish(train(optimizer, model))
        return model.parameters()

    # Adam divides by the root of squared gradients, which magnifies rounding where they are small.
    check_against_horovod(scenario, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("made", ["before", "after"])
def test_learning_rate_scheduler_made(made: str) -> None:
    """Before wrapping: torch does not see the wrapped optimizer step and says so; the rates are right all the same."""

    def scenario(make: Make):
        model = small_model()
        optimizer = plain = sgd(model)
        if made == "before":
            scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
        optimizer = make(plain, model)
        if made == "after":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        rates = []
        for _ in train(optimizer, model):
            rates.append(torch.tensor(optimizer.param_groups[0]["lr"]))
            scheduler.step()
        torch.testing.assert_close(rates[-1], torch.tensor(0.01 * 0.5 ** (STEPS - 1)))
        return [*rates, *model.parameters()]

    check_against_horovod(scenario)


def test_closure_is_evaluated_before_the_exchange(exact: Request) -> None:
    """Horovod would exchange before the closure has computed anything, so plain steps are the reference."""

    def scenario(with_closure: bool) -> torch.Tensor:
        model = small_model()
        optimizer = maker(exact)(sgd(model), model)
        for step in range(STEPS):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                value = loss(model, step)
                value.backward()
                return value

            if with_closure:
                assert optimizer.step(closure).item() > 0
            else:
                closure()
                optimizer.step()
        return flat(model.parameters())

    trained = scenario(with_closure=True)
    assert torch.equal(trained, scenario(with_closure=False))
    assert_same_on_all_ranks(trained)
