"""Trains for very many steps, and says what the process holds: memory, threads, files, and shared memory of this host.

Each rank's gradient follows from the step and the rank, in whole numbers, so that the sum of all that was counted is
known. Arguments: steps, and after how many it says so.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import psutil
import torch

import hvd_compress.torch as hvd

NUMEL = 64
PATTERN = torch.arange(NUMEL)


def say(**words: object) -> None:
    """In one piece: ranks share the launcher's output."""
    os.write(1, f"{json.dumps({'pid': os.getpid(), **words})}\n".encode())


def gradient(step: int, rank: int) -> torch.Tensor:
    return ((31 * step + 7 * rank + PATTERN) % 17 - 8).float()


def held() -> dict[str, int]:
    gc.collect()
    own = psutil.Process()
    mapped = [each for each in os.listdir("/dev/shm") if "hvd" in each]
    return {
        "rss_kib": own.memory_info().rss // 1024,
        "threads": own.num_threads(),
        "files": own.num_fds(),
        "shared": len(mapped),
    }


def main() -> None:
    steps, shown = map(int, sys.argv[1:3])
    hvd.init()
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), hvd.Compression.dense(), op=hvd.Sum
    )
    state = hvd.elastic.TorchState(model, optimizer, step=0, counted=torch.zeros(NUMEL))

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        say(enters=state.step, rank=hvd.rank(), size=hvd.size())
        while state.step < steps:
            optimizer.zero_grad()
            (model.weight[0] * gradient(state.step, hvd.rank())).sum().backward()
            optimizer.step()
            state.counted = state.counted + sum(gradient(state.step, rank) for rank in range(hvd.size()))
            state.step += 1
            if state.step % shown == 0:
                say(step=state.step, rank=hvd.rank(), **held())
                state.commit()
        say(ends=True, exact=bool(torch.equal(-model.weight.detach()[0], state.counted)))

    train(state)


if __name__ == "__main__":
    main()
