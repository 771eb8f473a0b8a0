"""Parameters without gradients, frozen ones, of several dtypes, in several groups, and without names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.request.request import Request
from tests.harness import backward, flat_gradient, gradient, make_parameters
from tests.parallel.training import (
    STEPS,
    Make,
    assert_same_on_all_ranks,
    batch,
    check_against_horovod,
    finish,
    flat,
    gradients,
    loss,
    maker,
    sgd,
    small_model,
    train,
)


class Branches(nn.Module):
    """A trunk that every pass uses, a branch that some do, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.never = nn.Linear(13, 3)
        self.sometimes = nn.Linear(13, 5)
        self.trunk = nn.Linear(13, 5)

    def forward(self, inputs: torch.Tensor, branch: bool) -> torch.Tensor:
        return self.trunk(inputs) + (self.sometimes(inputs) if branch else 0)


BRANCHES = {
    "never": lambda step: False,
    "always": lambda step: True,
    "in some steps": lambda step: step % 2 == 1,
    "not in the first step": lambda step: step > 0,
    "only in the first step": lambda step: step == 0,
    "on rank 0 only": lambda step: hvd.rank() == 0,
    "on the last rank only": lambda step: hvd.rank() == hvd.size() - 1,
    "on ranks in turn": lambda step: step % hvd.size() == hvd.rank(),
}


@pytest.mark.parametrize("clear", ["to none", "to zero"])
@pytest.mark.parametrize("when", BRANCHES)
def test_parameters_that_get_gradients_now_and_then(when: str, clear: str) -> None:
    """With weight decay a zero gradient and none are not the same, so this is held, too."""

    def scenario(make: Make):
        model = Branches()
        optimizer = make(sgd(model, weight_decay=0.1), model)
        for step in range(STEPS):
            model.zero_grad(set_to_none=clear == "to none")
            model(batch(step), BRANCHES[when](step)).square().sum().backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("request_name", ["topk", "efsign"])
def test_gradients_now_and_then_with_compression(request_name: str, engine: str) -> None:
    """Ranks that have none of their own take part all the same, with what they remember."""
    model = Branches()
    optimizer = maker(getattr(hvd.Compression, request_name)().by(engine=engine))(sgd(model), model)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        model(batch(step), step % hvd.size() == hvd.rank()).square().sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(flat(gradients(model)))
    assert not model.never.weight.grad.any()


def test_parameters_frozen_before() -> None:
    def scenario(make: Make):
        model = small_model()
        model[0].weight.requires_grad_(False)
        optimizer = make(sgd(model), model)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("clear", ["to none", "to zero"])
def test_parameters_frozen_in_the_middle(clear: str) -> None:
    """Without momentum: Horovod goes on to give frozen parameters zero gradients, which momentum makes steps of."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model, momentum=0), model)
        for step in range(2 * STEPS):
            model[0].weight.requires_grad_(step < STEPS or step == 2 * STEPS - 1)
            model.zero_grad(set_to_none=clear == "to none")
            loss(model, step).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


def test_a_frozen_parameter_stays_where_it_is(engine: str) -> None:
    """What is remembered of it waits, and neither momentum nor weight decay moves it."""
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.1).by(engine=engine))(sgd(model, weight_decay=0.1), model)
    finish(train(optimizer, model))
    frozen = model[0].weight.requires_grad_(False)
    before = frozen.clone()
    finish(train(optimizer, model, range(STEPS, 2 * STEPS)))
    assert torch.equal(frozen, before)
    assert_same_on_all_ranks(flat(model.parameters()))


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def mixed_parameters() -> dict[str, nn.Parameter]:
    """Every shape in every dtype, in turn."""
    parameters = {}
    for dtype in DTYPES:
        parameters |= {f"{name}.{dtype}": p for name, p in make_parameters(dtype=dtype).items()}
    return parameters


def test_several_dtypes_in_one_model(exact: Request) -> None:
    """Horovod cannot sum bfloat16, so the mean is computed from what all ranks are known to have."""
    parameters = mixed_parameters()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), compression=exact)
    for step in range(STEPS):
        backward(parameters, hvd.rank(), step)
        optimizer.step()
        for name, parameter in parameters.items():
            ranks = [gradient(name, tuple(parameter.shape), rank, step) for rank in range(hvd.size())]
            mean = torch.stack([own.to(parameter.dtype).double() for own in ranks]).mean(0)
            tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(parameter.dtype, 1e-6)
            assert parameter.grad.dtype == parameter.dtype
            torch.testing.assert_close(parameter.grad.double(), mean, rtol=tolerance, atol=tolerance)
        assert_same_on_all_ranks(flat_gradient(parameters))
        optimizer.zero_grad()
    kinds = [{parameters[name].dtype for name in names} for names in hvd.of(optimizer).decisions]
    assert all(len(kind) == 1 for kind in kinds)
    assert set.union(*kinds) == set(DTYPES)


@pytest.mark.parametrize("request_name", ["topk", "efsign", "bf16"])
def test_several_dtypes_with_compression(request_name: str, engine: str) -> None:
    parameters = mixed_parameters()
    request = getattr(hvd.Compression, request_name)().by(engine=engine)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), compression=request)
    for step in range(STEPS):
        backward(parameters, hvd.rank(), step)
        optimizer.step()
        assert_same_on_all_ranks(flat_gradient(parameters))
        optimizer.zero_grad()
    assert_same_on_all_ranks(flat(parameters.values()))


def test_half_precision_equals_horovod() -> None:
    def scenario(make: Make):
        model = nn.ModuleList([small_model(), small_model().double(), small_model().half()])
        optimizer = make(sgd(model, lr=0.001), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            sum(part(batch(step).to(part[0].weight.dtype)).square().sum().double() for part in model).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario, rtol=4e-3, atol=2e-3)


def test_several_parameter_groups() -> None:
    def scenario(make: Make):
        model = small_model()
        groups = [
            {"params": model[2].parameters(), "lr": 0.01, "weight_decay": 0.1},
            {"params": model[0].parameters()},
        ]
        optimizer = make(torch.optim.SGD(groups, lr=0.002, momentum=0.5), model)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


def test_without_names(exact: Request) -> None:
    def run(compression: Any) -> torch.Tensor:
        model = small_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), compression=compression)
        finish(train(optimizer, model))
        return flat(model.parameters())

    torch.testing.assert_close(run(exact), run(hvd.Compression.none), rtol=1e-5, atol=1e-6)
