"""Train by collectives that heed hosts; say which ranks share one, and whether all ranks end with the same parameters.

usage: hosts.py COLLECTIVE...
"""

from __future__ import annotations

import sys

import torch
from mpi4py import MPI

import hvd_compress.torch as hvd
import tests.jobs.programs.quick_start  # noqa: F401

STEPS = 8


def main(collective: str) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(50, 80), torch.nn.ReLU(), torch.nn.Linear(80, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    compression = hvd.Compression.topk(0.1).by(collective=collective, engine="mpi")
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    inputs = torch.Generator().manual_seed(hvd.rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 50, generator=inputs)).square().sum().backward()
        optimizer.step()
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    all_equal = len({bytes(raw) for raw in MPI.COMM_WORLD.allgather(parameters.numpy().tobytes())}) == 1
    named = {decision.collective for decision in hvd.of(optimizer).decisions.values()} == {collective}
    print(
        f"[rank {hvd.rank()}] {collective}: equal {all_equal}, named {named}, "
        f"finite {hvd.of(optimizer).last_step.finite}",
        flush=True,
    )


if __name__ == "__main__":
    hvd.init()
    for each in sys.argv[1:]:
        main(each)
