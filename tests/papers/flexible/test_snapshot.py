"""What training changes can be taken back to the bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress.errors import ConfigError
from hvd_compress.papers.flexible.snapshot import keep

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


class Net(torch.nn.Module):
    """With dropout, a buffer that is not saved, one that is replaced, and a parameter that no optimizer trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
        self.norm, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        self.frozen += 1
        return self.last(self.drop(self.norm(self.first(x)))) + self.frozen


def step(net: Net, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> None:
    optimizer.zero_grad(set_to_none=random.random() < 0.5)
    noise = float(np.random.rand()) + random.random()
    net(data[0] + noise + torch.randn(data[0].shape)).square().mean().backward()
    optimizer.step()


def everything(net: Net, optimizer: torch.optim.Optimizer) -> list[Any]:
    tensors = [*net.parameters(), *net.buffers()]
    tensors += [p.grad for p in net.parameters() if p.grad is not None]
    tensors += [value for p in net.parameters() for value in optimizer.state.get(p, {}).values()]
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    generators = [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]
    return [*(t.tolist() for t in tensors if isinstance(t, torch.Tensor)), settings, generators, net.drop.training]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("trained_before", [0, 2])
def test_all_is_as_before_and_goes_on_as_it_would_have(name: str, trained_before: int) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = OPTIMIZERS[name]([p for p in net.parameters() if p.requires_grad])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data = [torch.randn(5, 6)]
    for _ in range(trained_before):
        step(net, optimizer, data)
    restore = keep(net, optimizer, [schedule])
    before = everything(net, optimizer)
    gradients = [parameter.grad for parameter in net.parameters()]

    def train() -> list[Any]:
        for _ in range(3):
            step(net, optimizer, data)
            schedule.step()
        return everything(net, optimizer)

    first = train()
    net.eval()
    assert first != before
    for _ in range(2):  # more than once from the same copy
        restore()
        assert everything(net, optimizer) == before
        assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
        assert train() == first


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_module() -> None:
    net = torch.jit.script(torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    restore, before = keep(net, optimizer), copy.deepcopy(net.state_dict())
    net(torch.arange(12.0).reshape(4, 3)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net.running_mean, before["running_mean"])
    restore()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_generator_and_any_holder_of_a_position() -> None:
    class Position:
        def __init__(self) -> None:
            self.seen: list[int] = [1]

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}  # not a copy, as many do it

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = state["seen"]

    net = torch.nn.Linear(1, 1)
    generator, position = torch.Generator().manual_seed(3), Position()
    restore = keep(net, torch.optim.SGD(net.parameters(), lr=0.1), [generator, position])
    drawn = torch.rand(3, generator=generator)
    for _ in range(2):
        position.seen.append(2)
        restore()
        assert position.seen == [1]
        assert torch.equal(torch.rand(3, generator=generator), drawn)


def test_what_cannot_be_taken_back() -> None:
    net = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"type generator cannot be taken back.*place in the data"):
        keep(net, torch.optim.SGD(net.parameters(), lr=0.1), [iter(x for x in ())])
