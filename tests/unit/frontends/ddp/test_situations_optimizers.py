"""What steps: optimizers that call their closure several times, are sharded, train in turn, or keep averages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.unit.frontends.ddp.situations import STEPS, Situation, Wrap, check_as_plain, images, sgd, taught


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))


def aim(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs - torch.arange(4.0)).square().mean()


def lbfgs(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Several exchanges a step, between which parameters move, and of which some results are not stepped by."""
    ddp, inputs = wrap(model()), images(rank, 16, 9)
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=3, history_size=4)
    yield ddp

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = aim(ddp(inputs))
        loss.backward()
        return loss

    for _ in range(STEPS):
        yield float(optimizer.step(closure))


def zero_redundancy(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Each rank steps by its share of the parameters, and gets the others from who has stepped by them."""
    ddp, inputs = wrap(model()), images(rank, 16, 9)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    return taught(ddp, optimizer, lambda _: aim(ddp(inputs)))


def averages(wrap: Wrap, rank: int) -> Iterator[Any]:
    """A moving average of the weights is kept, swapped in to evaluate, and out again."""
    ddp, inputs = wrap(model()), images(rank, 16, 9)
    optimizer = sgd(ddp)
    average = AveragedModel(ddp.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    yield ddp
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = aim(ddp(inputs))
        loss.backward()
        optimizer.step()
        average.update_parameters(ddp.module)
        kept = {name: tensor.clone() for name, tensor in ddp.module.state_dict().items()}
        ddp.module.load_state_dict(average.module.state_dict())
        with torch.no_grad():
            aim(ddp(inputs))
        ddp.module.load_state_dict(kept)
        yield float(loss.detach())


def sharpness(wrap: Wrap, rank: int) -> Iterator[Any]:
    """SAM: by the gradient of a first pass the weights climb; from there the second one's is stepped by."""
    ddp, inputs = wrap(model()), images(rank, 16, 9)
    optimizer, parameters = sgd(ddp), list(ddp.parameters())
    yield ddp
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = aim(ddp(inputs))
        loss.backward()
        climbs = [0.05 * parameter.grad for parameter in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, climbs)
        optimizer.zero_grad()
        aim(ddp(inputs)).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, climbs)
        optimizer.step()
        yield float(loss.detach())


class Adapted(nn.Module):
    """A frozen layer and what is trained beside it, of low rank, computed anew in a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(9, 9).requires_grad_(False)
        self.down, self.up, self.head = nn.Linear(9, 3, bias=False), nn.Linear(3, 9, bias=False), nn.Linear(9, 4)

    def _adapted(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.base(inputs) + self.up(self.down(inputs)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self._adapted, inputs.requires_grad_(), use_reentrant=True))


def adapters(wrap: Wrap, rank: int) -> Iterator[Any]:
    ddp, inputs = wrap(Adapted(), bucket_cap_mb=0.0001), images(rank, 16, 9)
    return taught(ddp, sgd(ddp), lambda _: aim(ddp(inputs.detach())))


def discriminator_not_frozen(wrap: Wrap, rank: int) -> Iterator[Any]:
    """What the generator's loss leaves in the discriminator is zeroed, as its own loss comes next."""
    told, made = wrap(model()), wrap(nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 9)))
    noise, real = images(rank + 10, 16, 5), images(rank, 16, 9)
    optimizers = sgd(told, lr=0.01), sgd(made, lr=0.01)
    yield told
    for _ in range(STEPS):
        optimizers[0].zero_grad()
        loss = aim(told(real)) + aim(told(made(noise).detach()) + 1)
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        aim(told(made(noise))).backward()
        optimizers[1].step()
        yield float(loss.detach())


@pytest.mark.level2
@pytest.mark.parametrize(
    "situation",
    [lbfgs, zero_redundancy, averages, sharpness, adapters, discriminator_not_frozen],
    ids=lambda situation: situation.__name__,
)
def test_what_steps(situation: Situation) -> None:
    check_as_plain(situation)
