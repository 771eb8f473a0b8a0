"""Train a small convolutional net on images, with compressed gradients, by PyTorch's DistributedDataParallel.

    torchrun --nproc-per-node 4 examples/train_ddp.py --compression star --ratio 0.01
    torchrun --nproc-per-node 4 examples/train_ddp.py --compression auto
    torchrun --nproc-per-node 4 examples/train_ddp.py --demo

What makes the training distributed stands here; all that is ordinary, in images/. Horovod is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
import torch
import torch.distributed as dist
from images.command import run, with_options
from images.ranks import Ranks
from images.timing import StepMeter
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc

LAUNCH = "torchrun --nproc-per-node 4"


class DistributedModel:
    """A model that all ranks train: DDP exchanges the gradients, in the backward pass."""

    def __init__(self, model: nn.Module, compression: Any, lr: float) -> None:
        self.model = DistributedDataParallel(model)
        hc.compress(self.model, compression)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def step(self, images: torch.Tensor, labels: torch.Tensor, meter: StepMeter) -> torch.Tensor:
        """Take one step and return the loss."""
        self.optimizer.zero_grad()
        with meter.phase("forward_s"):
            loss = functional.cross_entropy(self.model(images), labels)
        with meter.phase("backward_s"):
            loss.backward()
        meter.move(self.last_step.wait_s, "backward_s", "wait_s")
        with meter.phase("update_s"):
            self.optimizer.step()
        return loss

    @property
    def last_step(self) -> Any:
        return hc.of(self.model).last_step

    @property
    def decisions(self) -> Mapping[tuple[str, ...], Any]:
        return hc.of(self.model).decisions

    @property
    def controller(self) -> Any:
        return hc.of(self.model).controller


def start(device: str) -> Ranks:
    if "RANK" not in os.environ:  # not by torchrun
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return Ranks(0, 1, 0, 1, sum_over_ranks, LAUNCH)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    local_rank, local_size = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if on_gpu:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return Ranks(dist.get_rank(), dist.get_world_size(), local_rank, local_size, sum_over_ranks, LAUNCH)


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total


@click.command(help=__doc__)
@with_options
def main(**options: Any) -> None:
    run(start, hc.Compression, DistributedModel, **options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
