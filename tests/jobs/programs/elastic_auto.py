"""Trains by auto() in a job whose ranks come and go, until a file is there, and says when it sees another network.

Arguments: the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import hvd_compress.torch as hvd
from tests.jobs.programs.elastic import say

ROWS, COLUMNS = 256, 2000


def main() -> None:
    end = Path(sys.argv[1])
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(COLUMNS, ROWS)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters(), hvd.Compression.auto()
    )
    state = hvd.elastic.TorchState(model, optimizer, step=0, seen=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        say(f"{os.getpid()} enters step {state.step} as rank {hvd.rank()} of {hvd.size()}")
        while True:
            draw = torch.Generator().manual_seed(100 * state.step + hvd.rank())
            optimizer.zero_grad()
            model(torch.randn(16, COLUMNS, generator=draw)).square().mean().backward()
            optimizer.step()
            state.step += 1
            controller = hvd.of(optimizer).controller
            if hvd.rank() == 0 and controller is not None:
                seen = sum(event.kind == "network" for event in controller.history)
                chosen = sorted({repr(each.compressor) for each in hvd.of(optimizer).decisions.values()})
                say(f"step {state.step}, {seen} networks, by {chosen}")
            if hvd.broadcast_object(end.exists(), 0, name="end"):
                break
            state.commit()
        weights = hvd.allgather(model.weight.detach()[None], name="weights")
        say(f"{os.getpid()} ends: alike {bool((weights == weights[0]).all())}")

    train(state)


if __name__ == "__main__":
    main()
