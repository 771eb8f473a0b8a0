"""Train a small convolutional net on images, with compressed gradients, on as many ranks as there are.

    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_images.py --compression star --ratio 0.01
    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_images.py --compression auto
    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_images.py --demo

What makes the training distributed stands here; all that is ordinary, in images/. train_ddp.py does the same with
PyTorch's DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import torch
from images.command import run, with_options
from images.ranks import Ranks
from images.timing import StepMeter
from torch import nn
from torch.nn import functional

import hvd_compress.torch as hvd


class DistributedModel:
    """A model that all ranks train: its optimizer exchanges the gradients."""

    def __init__(self, model: nn.Module, compression: Any, lr: float) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)

    def step(self, images: torch.Tensor, labels: torch.Tensor, meter: StepMeter) -> torch.Tensor:
        """Take one step and return the loss.

        Without the stop-watch, synchronize() and skip_synchronize() are not needed: optimizer.step() does both.
        """
        self.optimizer.zero_grad()
        with meter.phase("forward_s"):
            loss = functional.cross_entropy(self.model(images), labels)
        with meter.phase("backward_s"):
            loss.backward()
        with meter.phase("wait_s"):
            self.optimizer.synchronize()
        with meter.phase("update_s"), self.optimizer.skip_synchronize():
            self.optimizer.step()
        return loss

    @property
    def _handle(self) -> Any:
        """Horovod's own compressions have none."""
        return hvd.of(self.optimizer) if hasattr(self.optimizer, "handle") else None

    @property
    def last_step(self) -> Any:
        return self._handle and self._handle.last_step

    @property
    def decisions(self) -> Mapping[tuple[str, ...], Any]:
        return self._handle.decisions if self._handle else {}

    @property
    def controller(self) -> Any:
        return self._handle and self._handle.controller


def start(device: str) -> Ranks:
    hvd.init()
    return ranks()


def ranks() -> Ranks:
    """Return the ranks of the job."""
    launch = "mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python"
    return Ranks(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), sum_over_ranks, launch)


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    return hvd.allreduce(tensor, name="sum", op=hvd.Sum)


@click.command(help=__doc__)
@with_options
def main(**options: Any) -> None:
    run(start, hvd.Compression, DistributedModel, **options)


if __name__ == "__main__":
    main()
