"""Accordion's schedule of batch sizes: small batches in critical regimes of a training, large ones in the rest.

Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", Section 3.2.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

import torch
from torch.utils.data import Sampler

from hvd_compress.errors import ConfigError
from hvd_compress.policies.accordion import change, check_schedule, has_fallen


class Compares(Protocol):
    """A distributed optimizer, or what stands for it: ranks tell each other figures."""

    def compare(self, figures: Sequence[float]) -> list[list[float]]: ...


class BatchSampler(Sampler[list[int]]):
    """Batches of a sampler, whose size may change between epochs: DataLoader(..., batch_sampler=batches).

    Attributes:
        sampler: of single samples, such as a DistributedSampler, whose set_epoch() a program calls as ever.
        batch_size: samples of a batch on this rank, from the next iteration on.
        drop_last: leave out a last batch that is not full.
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, drop_last: bool = False) -> None:
        """Raises ConfigError where `batch_size` is no number of samples."""
        self.sampler, self.batch_size, self.drop_last = sampler, _size("batch_size", batch_size), drop_last

    def __iter__(self) -> Iterator[list[int]]:
        size, batch = self.batch_size, []
        for sample in self.sampler:
            batch.append(sample)
            if len(batch) == size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


class BatchSizeSchedule:
    """Takes large batches, and a learning rate as many times as large, while the training is in no critical regime.

    Call step() behind each optimizer.step(), while gradients are there, and end_epoch() at the end of an epoch, behind
    the step of a learning-rate scheduler, on all ranks. In epochs 0, every, 2 every, ... gradients are averaged over
    steps, of which large batches make fewer; at the end of each the norm of this mean is compared with that of the one
    before. Where it has changed by `eta` or more, where a learning rate has decayed, and until two epochs have been
    compared, batches are small.

    Attributes:
        is_large: whether batches are large.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        batches: BatchSampler,
        large: int,
        *,
        eta: float = 0.5,
        every: int = 10,
        scheduler: Any = None,
        ranks: Compares | None = None,
    ) -> None:
        """Begin with the batches as they are.

        Args:
            optimizer: whose gradients are watched, and whose learning rates scaled.
            batches: whose batch_size is switched.
            large: samples of a large batch on this rank.
            eta, every: as Compression.accordion().
            scheduler: of learning rates, whose base_lrs are scaled, too: LambdaLR and its like begin from them in each
                step.
            ranks: what lets ranks agree: a distributed optimizer of hvd_compress.torch, by default `optimizer` where it
                is one; under DDP hc.Ranks(model).

        Raises ConfigError where a value is out of range.
        """
        check_schedule(eta, every)
        self._optimizer, self._batches, self._eta, self._every = optimizer, batches, eta, every
        self._small, self._large = batches.batch_size, _size("large", large)
        if self._large <= self._small:
            raise ConfigError(f"large = {large} must be more than the {self._small} samples of a small batch")
        self._scheduler = scheduler
        self._ranks = ranks if ranks is not None else (optimizer if hasattr(optimizer, "compare") else None)
        self._sums: dict[int, torch.Tensor] = {}
        self._steps = 0  # in these sums
        self.is_large = False
        self._norm, self._epoch, self._rates = math.nan, 0, self._own_rates()

    @property
    def factor(self) -> float:
        """By what learning rates are multiplied."""
        return self._large / self._small if self.is_large else 1.0

    def step(self) -> None:
        """Take the gradients of a step that is over."""
        if self._epoch % self._every:
            return
        self._steps += 1
        for number, gradient in enumerate(self._gradients()):
            if gradient is None or not bool(torch.isfinite(gradient).all()):
                continue
            if number in self._sums:
                self._sums[number].add_(gradient)
            else:
                self._sums[number] = gradient.detach().to_dense().float().clone()

    def end_epoch(self) -> None:
        """An epoch is over: batches and learning rates of the next one may be others. All ranks call it."""
        squares = [float(torch.linalg.vector_norm(each).double()) ** 2 for each in self._sums.values()]
        rates = self._own_rates()
        mine = [math.sqrt(sum(squares)) / max(1, self._steps), float(has_fallen(self._rates, rates))]
        everyone = [mine] if self._ranks is None else self._ranks.compare(mine)
        norm = fmean(each[0] for each in everyone)
        if self._epoch % self._every == 0:
            self._switch(not math.isnan(self._norm) and change(self._norm, norm) < self._eta)
            self._norm, self._sums, self._steps = norm, {}, 0
        if any(each[1] for each in everyone):
            self._switch(False)
        self._rates, self._epoch = rates, self._epoch + 1

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, at the end of an epoch; the optimizer's own state holds the rates as they are."""
        return {"norm": self._norm, "epoch": self._epoch, "rates": self._rates, "is_large": self.is_large}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what state_dict() gave; learning rates are those that the optimizer has loaded.

        Raises ConfigError for something else.
        """
        if not isinstance(state, Mapping) or state.keys() != self.state_dict().keys():
            raise ConfigError("this is no state of a schedule of batch sizes: load what state_dict() returned")
        self._norm, self._epoch = float(state["norm"]), int(state["epoch"])
        self._rates, self.is_large = list(state["rates"]), bool(state["is_large"])
        self._batches.batch_size = self._large if self.is_large else self._small

    def _gradients(self) -> list[torch.Tensor | None]:
        return [parameter.grad for group in self._optimizer.param_groups for parameter in group["params"]]

    def _own_rates(self) -> list[float]:
        """Return learning rates as they would be with small batches."""
        return [float(group["lr"]) / self.factor for group in self._optimizer.param_groups]

    def _switch(self, is_large: bool) -> None:
        before, self.is_large = self.factor, is_large
        self._batches.batch_size = self._large if is_large else self._small
        times = self.factor / before
        for group in self._optimizer.param_groups:
            group["lr"] *= times
            if "initial_lr" in group:
                group["initial_lr"] *= times
        if self._scheduler is not None:
            self._scheduler.base_lrs = [rate * times for rate in self._scheduler.base_lrs]


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {value!r} must be a number of samples, 1 or more")
    return value
