"""What hvd_compress.torch has in addition to collectives, on this package's runtime.

usage: without_horovod.py normalises|adasum|part, then all
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import hvd_compress.torch as hvd


def normalises() -> None:
    """As torch's own over the batches of all ranks, which differ in size."""
    torch.manual_seed(1)
    whole = torch.randn(2 + 3 * hvd.size(), 4, 5) * 3 + 7
    ends = [2 + 3 * rank if rank else 0 for rank in range(hvd.size() + 1)]
    mine, expected = hvd.SyncBatchNorm(4), torch.nn.BatchNorm1d(4)
    part = whole[ends[hvd.rank()] : ends[hvd.rank() + 1]].clone().requires_grad_()
    whole.requires_grad_()
    for _ in range(2):
        ours, theirs = mine(part), expected(whole)
    weights = torch.arange(float(theirs.numel())).view_as(theirs).sin()
    (theirs * weights).sum().backward()
    rows = slice(ends[hvd.rank()], ends[hvd.rank() + 1])
    (ours * weights[rows]).sum().backward()
    torch.testing.assert_close(ours, theirs[rows], rtol=1e-4, atol=1e-5)
    assert whole.grad is not None
    torch.testing.assert_close(part.grad, whole.grad[rows], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(mine.running_mean, expected.running_mean)
    torch.testing.assert_close(mine.running_var, expected.running_var)
    mine.eval()
    expected.eval()
    torch.testing.assert_close(mine(part), expected(part))
    unbiased = hvd.SyncBatchNorm(4, affine=False)(part)
    torch.testing.assert_close(unbiased, torch.nn.BatchNorm1d(4, affine=False)(whole)[rows], rtol=1e-4, atol=1e-5)


def adasum() -> None:
    """Equal steps combine to one of them, orthogonal ones to their sum."""
    parameters = {"equal": torch.zeros(4, requires_grad=True), "other": torch.zeros(2, requires_grad=True)}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters.values(), lr=1.0), parameters.items(), op=hvd.Adasum
    )
    (parameters["equal"].sum() + parameters["other"][hvd.rank()]).backward()
    optimizer.step()
    assert parameters["equal"].tolist() == [-1] * 4
    assert parameters["other"].tolist() == [-1] * 2


def part_then_all() -> None:
    """Ranks that have made groups without the others meet them again."""
    few = hvd.add_process_set([0, 1])
    for process_set in (few, hvd.global_process_set):
        model = torch.nn.Linear(20, 20)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compression = hvd.Compression.topk(0.1).by(collective="allgather")
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=compression, process_set=process_set
        )
        model(torch.ones(20)).sum().backward()
        optimizer.step()
    last = hvd.add_process_set([1, 2])
    if last.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=last).item() == 2
    hvd.barrier()  # no rank goes on without rank 0


hvd.init()
Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
{"normalises": normalises, "adasum": adasum, "part, then all": part_then_all}[sys.argv[1]]()
hvd.shutdown()
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
print(f"[rank {hvd.rank()}] is done", flush=True)
