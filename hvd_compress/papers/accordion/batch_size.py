"""Accordion's schedule of batch sizes: small batches in critical regimes of a training, large ones in the rest.

Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", Section 3.2.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from hvd_compress.checks import check_whole, is_whole
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.launched import has_several_ranks
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.papers.accordion.critical import change, check_schedule, has_decayed

Gather = Callable[[Sequence[float]], list[list[float]]]
"""Returns the figures of all ranks, which bring as many."""


class BatchSizeSchedule:
    """Takes large batches, and a learning rate as many times as large, while the training is in no critical regime.

    Call step() behind each optimizer.step(), while gradients are there, and end_epoch() at the end of an epoch, behind
    the step of a learning-rate scheduler, on all ranks. In epochs 0, every, 2 every, ... gradients are averaged over
    steps, of which large batches make fewer; at the end of each the norm of this mean is compared with that of the one
    before. Where it has changed by `eta` or more, where a learning rate has decayed, and until two epochs have been
    compared, batches are small. Gradients count as they are: after clipping, if a program clips them.

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
        gather: Gather | None = None,
    ) -> None:
        """Begin with the batches as they are.

        Args:
            optimizer: whose gradients are watched, and whose learning rates scaled.
            batches: torch's sampler of batches, of this rank's samples: the `batch_sampler` of a DataLoader. Its
                batch_size is switched, which counts from the next iteration on.
            large: samples of a large batch on this rank.
            eta, every: as Compression.accordion().
            scheduler: of learning rates, whose base_lrs are scaled, too: LambdaLR and its like begin from them in each
                step.
            gather: what lets ranks agree, by default that of a distributed optimizer of hvd_compress.torch; under DDP
                hc.of(model).gather_figures.

        Raises ConfigError where a value is out of range, or ranks are several that could not agree.
        """
        check_schedule(eta, every)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"a {type(optimizer).__name__} has no learning rates: pass the optimizer")
        _check_sizes(batches, large)
        self._optimizer, self._batches, self._eta, self._every = optimizer, batches, eta, every
        self._small, self._large = batches.batch_size, large
        if scheduler is not None and not isinstance(getattr(scheduler, "base_lrs", None), list):
            raise ConfigError(
                f"a {type(scheduler).__name__} has no base_lrs to scale: leave scheduler= out where it multiplies the "
                "rates that it finds, as ReduceLROnPlateau does, else pass the schedulers within it one by one"
            )
        self._scheduler = scheduler
        own = optimizer.handle.gather_figures if isinstance(optimizer, ReducingOptimizer) else None
        self._gather: Gather | None = gather or own
        if self._gather is None and has_several_ranks():
            raise ConfigError(
                "gather= is missing, by which ranks agree: pass hc.of(model).gather_figures under DDP; with "
                "Horovod take a compression of this package, such as dense(), or pass gather=hvd.allgather_object"
            )
        if self._gather is not None and not callable(self._gather):
            raise ConfigError(f"gather = {gather!r} must take figures, and return those of all ranks")
        self._sums: dict[int, torch.Tensor] = {}
        self._steps = 0  # in these sums
        self._stepped = False  # since the last epoch
        self.is_large = False
        self._norm, self._epoch, self._rates = math.nan, 0, self._own_rates()

    @property
    def factor(self) -> float:
        """By what learning rates are multiplied."""
        return self._large / self._small if self.is_large else 1.0

    def step(self) -> None:
        """Take the gradients of a step that is over, unless one is not finite."""
        gradients = {number: each for number, each in enumerate(self._gradients()) if each is not None}
        self._stepped = self._stepped or bool(gradients)
        if self._epoch % self._every or not all(map(_is_finite, gradients.values())):
            return
        self._steps += 1
        for number, gradient in gradients.items():
            own = _flat(gradient)
            self._sums[number] = self._sums[number].add_(own) if number in self._sums else own.clone()

    def end_epoch(self) -> None:
        """An epoch is over: batches and learning rates of the next one may be others. All ranks call it.

        What rank 0 has loaded counts; its learning rates go to the others with the optimizer's state.

        Raises UsageError where step() has seen no gradient in it, ConfigError where ranks have other settings.
        """
        if not self._stepped:
            raise UsageError(
                "no gradient was seen in this epoch: call the schedule's step() behind optimizer.step(), and before "
                "optimizer.zero_grad()"
            )
        squares = [float(torch.linalg.vector_norm(each).double()) ** 2 for each in self._sums.values()]
        rates = self._own_rates()
        norm = math.sqrt(sum(squares)) / self._steps if self._steps else math.nan  # no step was finite
        mine = [norm, float(has_decayed(self._rates, rates)), self._epoch, self._norm, float(self.is_large)]
        settings = [float(self._small), float(self._large), self._eta, float(self._every)]
        everyone = [[*mine, *settings]] if self._gather is None else self._gather([*mine, *settings])
        if any(each[5:] != everyone[0][5:] for each in everyone):
            raise ConfigError(f"small, large, eta and every differ between ranks: {[each[5:] for each in everyone]}")
        _, _, epoch, self._norm, is_large = everyone[0][:5]  # rank 0 may have loaded them alone
        self._epoch, self.is_large = int(epoch), bool(is_large)
        norm = fmean(each[0] for each in everyone)
        if self._epoch % self._every == 0:
            self._switch(change(self._norm, norm) < self._eta)
            self._norm, self._sums, self._steps = norm, {}, 0
        if any(each[1] for each in everyone):
            self._switch(False)
        self._rates, self._epoch, self._stepped = rates, self._epoch + 1, False

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, at the end of an epoch; the optimizer's own state holds the rates as they are."""
        return {"norm": self._norm, "epoch": self._epoch, "rates": self._rates, "is_large": self.is_large}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what state_dict() gave; learning rates are those that the optimizer has loaded.

        Raises ConfigError for something else.
        """
        if not isinstance(state, Mapping) or state.keys() != self.state_dict().keys():
            raise ConfigError("this is no state of a schedule of batch sizes: load what state_dict() returned")
        try:
            norm, epoch, rates = float(state["norm"]), int(state["epoch"]), [float(rate) for rate in state["rates"]]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the state of a schedule of batch sizes holds what is no number: {error}") from None
        if len(rates) != len(self._optimizer.param_groups):
            count = len(self._optimizer.param_groups)
            raise ConfigError(f"the state has learning rates of {len(rates)} groups, and the optimizer has {count}")
        self._norm, self._epoch, self._rates, self.is_large = norm, epoch, rates, bool(state["is_large"])
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
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] = group[name] * times  # not in place: groups may share a tensor
        if self._scheduler is not None:
            self._scheduler.base_lrs = [rate * times for rate in self._scheduler.base_lrs]


def _check_sizes(batches: BatchSampler, large: int) -> None:
    small = getattr(batches, "batch_size", None)
    if isinstance(batches, DataLoader) or not is_whole(small):
        raise ConfigError(
            f"a {type(batches).__name__} has no batch_size that can be changed: pass torch's BatchSampler, and give it "
            "to the DataLoader as batch_sampler="
        )
    check_whole("large", large, small + 1, of="samples", hint=f"a small batch has {small}")
    samples = getattr(batches, "sampler", None)
    if getattr(batches, "drop_last", False) and isinstance(samples, Sized) and len(samples) < large:
        raise ConfigError(
            f"large = {large} is more than the {len(samples)} samples of this rank: no batch would be left"
        )


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient of any kind as dense real numbers in fp32."""
    dense = gradient.detach().to_dense()
    return (torch.view_as_real(dense) if dense.is_complex() else dense).float()


def _is_finite(gradient: torch.Tensor) -> bool:
    values = gradient.detach().coalesce().values() if gradient.is_sparse else gradient
    return bool(torch.isfinite(values).all())
