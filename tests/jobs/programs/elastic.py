"""Trains by whole numbers in a job whose ranks come and go, and says whether anything was lost.

What rank r has computed in step s follows from both, so that the sum of all that was counted is known: it must lie in
the parameters and in what ranks remember. Arguments: the compression, steps, and seconds that a step takes at least.
"""

from __future__ import annotations

import os
import sys
import time

import torch

import hvd_compress.torch as hvd

NUMEL, SHOWN = 5000, 10


def gradient(step: int, rank: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(-9, 9, (NUMEL,), generator=draw).float()


def say(words: str) -> None:
    """In one piece: ranks share the launcher's output."""
    os.write(1, f"{words}\n".encode())


def main() -> None:
    name, steps, least_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    hvd.init()
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    compression = {"none": hvd.Compression.none, "dense": hvd.Compression.dense(), "topk": hvd.Compression.topk(0.2)}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression[name], op=hvd.Sum
    )
    state = hvd.elastic.TorchState(model, optimizer, sizes=[])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        say(f"{os.getpid()} enters step {len(state.sizes)} as rank {hvd.rank()} of {hvd.size()}")
        files, threads = (len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task"))
        say(f"{os.getpid()} holds {files} files, {threads} threads")
        while len(state.sizes) < steps:
            step = len(state.sizes)
            optimizer.zero_grad()
            (model.weight[0] * gradient(step, hvd.rank())).sum().backward()
            optimizer.step()
            state.sizes.append(hvd.size())
            if hvd.rank() == 0 and step % SHOWN == 0:
                say(f"step {step}")
            time.sleep(least_s)
            if step % 2:  # else ranks meet anew within a step
                state.commit()
        check(state, name)

    train(state)


def check(state: hvd.elastic.TorchState, name: str) -> None:
    counted = sum(gradient(step, rank) for step, size in enumerate(state.sizes) for rank in range(size))
    owed = torch.zeros(NUMEL)
    if name == "topk":
        (own,) = hvd.of(state.optimizer).state_dict()["ranks"].values()
        owed = own["residuals"].get("weight", owed)  # none where it has gone dense
    moved = -state.model.weight.detach()[0]
    is_exact = torch.equal(moved + hvd.allreduce(owed, op=hvd.Sum, name="owed"), counted)
    everywhere = hvd.allgather(moved[None], name="moved")
    say(f"{os.getpid()} owes {int(owed.count_nonzero())} elements")
    say(f"{os.getpid()} ends: exact {is_exact}, alike {bool((everywhere == moved).all())}")


if __name__ == "__main__":
    main()
