"""Two optimizers whose losses reach each other's parameters: Horovod's users switch those off with requires_grad_()."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import hvd_compress.torch as hvd
from hvd_compress.request.request import Request
from tests.harness import REQUESTS
from tests.parallel.training import assert_same_on_all_ranks, batch, flat, maker, on_engine, residuals

STEPS = 12


class Gan:
    """A generator of batches and what tells them from real ones, trained in turn.

    A rank trains on its own share of each batch; `ranks` are those whose shares count here.
    """

    def __init__(self, ranks: Iterable[int], passes: int) -> None:
        torch.manual_seed(3)
        self.generator = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 13))
        self.discriminator = nn.Sequential(nn.Linear(13, 24), nn.LeakyReLU(), nn.Linear(24, 1))
        self.ranks, self.passes = list(ranks), passes
        self.optimizers: list[Any] = [
            torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5) for net in (self.generator, self.discriminator)
        ]

    def wrap(self, compression: Any) -> Gan:
        """The discriminator's gradients may be summed over two backward passes, as many programs do."""
        make = maker(compression)
        generator, discriminator = self.optimizers
        self.optimizers = [
            make(generator, self.generator),
            make(discriminator, self.discriminator, backward_passes_per_step=self.passes),
        ]
        return self

    def steps(self) -> Iterator[int]:
        generator, discriminator = self.optimizers
        for step in range(STEPS):
            self.discriminator.requires_grad_(True)
            discriminator.zero_grad()
            losses = [self._mean(self._takes_for_made, step), self._mean(self._takes_for_real, step)]
            for loss in losses if self.passes == 2 else [sum(losses)]:
                loss.backward()
            discriminator.step()

            self.discriminator.requires_grad_(False)
            generator.zero_grad()
            self._mean(self._is_told, step).backward()
            generator.step()
            yield step

    def parameters(self) -> torch.Tensor:
        return flat([*self.generator.parameters(), *self.discriminator.parameters()])

    def _made(self, step: int, rank: int) -> torch.Tensor:
        return self.generator(batch(1000 + step, rank)[:, :4])

    def _takes_for_made(self, step: int, rank: int) -> torch.Tensor:
        return softplus(-self.discriminator(batch(step, rank)))

    def _takes_for_real(self, step: int, rank: int) -> torch.Tensor:
        return softplus(self.discriminator(self._made(step, rank).detach()))

    def _is_told(self, step: int, rank: int) -> torch.Tensor:
        return softplus(-self.discriminator(self._made(step, rank)))

    def _mean(self, loss: Callable[[int, int], torch.Tensor], step: int) -> torch.Tensor:
        return torch.stack([loss(step, rank).mean() for rank in self.ranks]).mean()


@pytest.mark.parametrize("passes", [1, 2])
def test_what_loses_nothing_equals_one_process(exact: Request, passes: int) -> None:
    alone = Gan(range(hvd.size()), passes)
    start = alone.parameters()
    distributed = Gan([hvd.rank()], passes).wrap(exact)
    for _ in zip(alone.steps(), distributed.steps(), strict=True):
        torch.testing.assert_close(distributed.parameters(), alone.parameters(), rtol=1e-4, atol=1e-6)
    assert (alone.parameters() != start).sum() > 0.9 * len(start)
    assert_same_on_all_ranks(distributed.parameters())


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "efsign", "dense"])
def test_every_step_is_the_same_on_all_ranks(name: str, engine: str) -> None:
    gan = Gan([hvd.rank()], 1).wrap(on_engine(REQUESTS[name], engine))
    start = gan.parameters()
    for _ in gan.steps():
        assert_same_on_all_ranks(gan.parameters())
    assert torch.isfinite(gan.parameters()).all()
    assert (gan.parameters() != start).sum() > 0.25 * len(start)
    assert [hvd.of(optimizer).last_step.step for optimizer in gan.optimizers] == [STEPS - 1, STEPS - 1]
    if name != "dense":
        assert all(residuals(optimizer).any() for optimizer in gan.optimizers)


def test_two_models_without_names_are_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_compress.frontends.horovod.distributed._told_of_two", False)

    def made(named: bool) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        names = model.named_parameters() if named else None
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, hvd.DistributedOptimizer(sgd, names, compression=hvd.Compression.int4())

    def step(*pairs: tuple[nn.Module, Any]) -> None:
        for model, optimizer in pairs:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(made(named=False))
        fold = made(named=False)  # the one before is not used any more
        step(fold, made(named=True))
    other, third = made(named=False), made(named=False)
    fold[1].register_step_post_hook(lambda *_: None)
    with pytest.warns(
        UserWarning, match="two optimizers are in use that were wrapped without named_parameters"
    ) as told:
        step(fold, other, third, fold, other)
    assert len(told) == 1
