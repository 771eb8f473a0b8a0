"""A rank of the jobs that benchmarks.elastic.step compares: it trains a transformer, and says what steps took.

Arguments: "plain" or "elastic", and how many steps. Moments are in seconds since the epoch.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch

import hvd_compress.torch as hvd
from benchmarks.time_to_accuracy.text import CONTEXT, ByteTransformer

BATCH, WARM_UP = 4, 10


def main() -> None:
    kind, steps = sys.argv[1], int(sys.argv[2])
    hvd.init()
    torch.manual_seed(0)
    model = ByteTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.int4())
    state = hvd.elastic.TorchState(model, optimizer, step=0) if kind == "elastic" else None
    batch = torch.randint(256, (BATCH, CONTEXT))
    taken: list[float] = []

    def step() -> None:
        began_s = time.perf_counter()
        optimizer.zero_grad()
        model(batch).logsumexp(-1).mean().backward()
        optimizer.step()
        if state is not None:
            state.step += 1
            state.commit()
        taken.append(time.perf_counter() - began_s)

    def train(state: object) -> None:
        say(ranks=hvd.size(), rank=hvd.rank(), process=os.getpid(), at_s=time.time())
        step()
        say(first=True, rank=hvd.rank(), process=os.getpid(), at_s=time.time())
        while len(taken) < steps:
            step()

    if state is None:
        train(None)
    else:
        hvd.elastic.run(train)(state)
    if hvd.rank() == 0:
        say(step_s=statistics.fmean(taken[WARM_UP:]))


def say(**what: object) -> None:
    os.write(1, f"{json.dumps(what)}\n".encode())


if __name__ == "__main__":
    main()
