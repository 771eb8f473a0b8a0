"""Trains by whole numbers in DistributedDataParallel under torchrun, and says whether anything was lost.

Arguments as of the program elastic.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress import elastic
from tests.jobs.programs.elastic import NUMEL, SHOWN, gradient, say


def main() -> None:
    name, steps, least_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    module = torch.nn.Linear(NUMEL, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    model = DistributedDataParallel(module)
    if name != "none":
        hc.compress(model, {"dense": hc.Compression.dense(), "topk": hc.Compression.topk(0.2)}[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = elastic.TorchState(model, optimizer, sizes=[])

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        say(f"{os.getpid()} enters step {len(state.sizes)} as rank {rank} of {size}")
        while len(state.sizes) < steps:
            optimizer.zero_grad()
            mine = gradient(len(state.sizes), rank) * size  # a mean is taken
            model(mine).sum().backward()
            optimizer.step()
            state.sizes.append(size)
            if rank == 0 and (len(state.sizes) - 1) % SHOWN == 0:
                say(f"step {len(state.sizes) - 1}")
            time.sleep(least_s)
            state.commit()
        check(state, name)

    train(state)
    dist.destroy_process_group()


def check(state: elastic.TorchState, name: str) -> None:
    counted = sum(gradient(step, rank) for step, size in enumerate(state.sizes) for rank in range(size))
    owed = torch.zeros(NUMEL)
    if name == "topk":
        (own,) = hc.of(state.model).state_dict()["ranks"].values()
        owed = own["residuals"].get("module.weight", own["residuals"].get("weight", owed)).clone()
        owed /= dist.get_world_size()
    moved = -state.model.module.weight.detach()[0]
    everywhere = [torch.empty_like(moved) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, moved)
    owes = int(owed.count_nonzero())
    dist.all_reduce(owed)
    alike = all(torch.equal(each, moved) for each in everywhere)
    say(f"{os.getpid()} owes {owes} elements")
    say(f"{os.getpid()} ends: exact {torch.equal(moved + owed, counted)}, alike {alike}")


if __name__ == "__main__":
    main()
