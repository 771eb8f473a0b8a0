"""Trains by local steps in a job whose ranks come and go, and says how well, and whether ranks end alike.

Arguments: the compression, steps, seconds that a step takes at least, fragments, steps of delay, and how many are
synchronous first.
"""

from __future__ import annotations

import os
import sys
import time

import torch

import hvd_compress.torch as hvd
from hvd_compress.local import LocalSteps

INPUTS, SHOWN = 32, 10


def say(words: str) -> None:
    """In one piece: ranks share the launcher's output."""
    os.write(1, f"{words}\n".encode())


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, INPUTS, generator=draw)
    return inputs, inputs.cumsum(1)[:, ::8]


def main() -> None:
    name, steps, least_s, fragments, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:6])
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, 24), torch.nn.Linear(24, INPUTS // 8))
    first = int(sys.argv[6]) if len(sys.argv) > 6 else 5
    compression = {"topk": hvd.Compression.topk(0.2), "dense": hvd.Compression.dense(), "int4": hvd.Compression.int4()}[
        name
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    local = LocalSteps(
        optimizer, model, every=6, start_after=first, compression=compression, fragments=fragments, delay=delay
    )
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        say(f"{os.getpid()} enters step {state.step} as rank {hvd.rank()} of {hvd.size()}")
        files, threads = (len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task"))
        say(f"{os.getpid()} holds {files} files, {threads} threads")
        while state.step < steps:
            inputs, targets = batch(1000 * state.step + hvd.rank())
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            state.step += 1
            if hvd.rank() == 0 and state.step % SHOWN == 0:
                say(f"step {state.step}")
            time.sleep(least_s)
            if state.step % 2:  # else ranks meet anew within a step
                state.commit()
        local.finish()
        check(model)

    train(state)


@torch.no_grad()
def check(model: torch.nn.Module) -> None:
    mine = torch.nn.utils.parameters_to_vector(model.parameters())
    everywhere = hvd.allgather(mine[None], name="parameters")
    inputs, targets = batch(10**9)
    loss = torch.nn.functional.mse_loss(model(inputs), targets).item()
    say(f"{os.getpid()} ends: loss {loss:.4f}, alike {bool((everywhere == mine).all())}")


if __name__ == "__main__":
    main()
