"""Every collective of the runtime by name, over whatever the launcher allows; then a misfortune of the last rank.

usage: runtime.py MISFORTUNE
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from hvd_compress.errors import HvdCompressError
from hvd_compress.runtime import handles, objects, operations, world

Path(os.environ["JOB_FOLDER"], str(os.getpid())).touch()


def every_collective() -> None:
    """Check each against what it must be."""
    rank, size = world.rank(), world.size()
    ranks = torch.arange(size)
    ones = torch.ones(3, 2)
    leaf = (ones * (rank + 1)).requires_grad_()
    total = operations.allreduce(leaf, op=handles.Sum, name="sum")
    assert torch.equal(total, ones * (ranks + 1).sum()), total
    total.sum().backward()
    assert torch.equal(leaf.grad, ones * size), leaf.grad
    mean = operations.allreduce_(ones.double() * rank, name="mean")
    assert torch.equal(mean, ones.double() * ranks.double().mean()), mean
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64):
        largest = operations.allreduce(torch.full((5,), rank, dtype=dtype), op=handles.Max)
        assert torch.equal(largest, torch.full((5,), size - 1, dtype=dtype)), largest
    grouped = operations.grouped_allreduce([ones * rank, ones.int() * rank], op=handles.Sum, name="group")
    assert [each.dtype for each in grouped] == [torch.float32, torch.int32]
    assert all(torch.equal(each.float(), ones * ranks.sum()) for each in grouped)
    rows = operations.allgather(torch.full((rank + 1, 2), float(rank)), name="rows")
    assert rows[:, 0].tolist() == [float(each) for each in range(size) for _ in range(each + 1)]
    assert operations.broadcast(ones * rank, size - 1, name="last").tolist() == (ones * (size - 1)).tolist()
    received, counts = operations.alltoall(torch.full((size,), float(rank)), torch.ones(size).int(), name="each")
    assert received.tolist() == ranks.float().tolist(), received
    assert counts.tolist() == [1] * size
    scattered = operations.reducescatter(torch.arange(2.0 * size), op=handles.Sum)
    assert scattered.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size], scattered
    hashed = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([1.0]), (size,), check_invariants=True)
    added = handles.synchronize(operations.sparse_allreduce_async(hashed, "hashed", handles.Sum))
    assert added.to_dense().tolist() == [1.0] * size
    told = objects.broadcast_object({"rank": rank}, 0)
    assert told == {"rank": 0}, told
    assert objects.allgather_object("x" * rank) == ["x" * each for each in range(size)]
    with torch.inference_mode():
        assert operations.allreduce_(torch.ones(2), op=handles.Sum).tolist() == [size] * 2
    whole = operations.allreduce(ones.clone().requires_grad_(), name="whole")
    whole.mul_(2).sum().backward()  # it is no view
    evens = world.add_process_set(range(0, size, 2))
    if evens.included():
        partial = operations.allreduce(torch.ones(1), op=handles.Sum, process_set=evens)
        assert partial.item() == evens.size()
    assert world.remove_process_set(evens)
    for _ in range(rank):
        operations.allreduce(torch.ones(2), op=handles.Sum)
    assert handles.join() == size - 1
    assert operations.allreduce(torch.ones(2), op=handles.Sum).tolist() == [size] * 2
    operations.barrier()


def misfortune(kind: str) -> None:
    """Meet it, on the last rank; others wait for it."""
    if world.rank() == world.size() - 1:
        Path(os.environ["JOB_FOLDER"], "unlucky").touch()
        if kind == "dies":
            os._exit(7)
        if kind == "leaves":
            world.shutdown()
            return
        if kind == "raises":
            raise RuntimeError("as it was told")
        if kind == "sleeps":
            time.sleep(6)
            return
        shape, name = {"another shape": (4, "x"), "another name": (3, "y")}[kind]
        operations.allreduce(torch.ones(shape), name=name)
    operations.allreduce(torch.ones(3), name="x")


world.init()
every_collective()
print(f"[rank {world.rank()}] has done all {'horovod' in sys.modules}", flush=True)
if sys.argv[1] != "none":
    try:
        misfortune(sys.argv[1])
    except HvdCompressError as error:
        print(f"[rank {world.rank()}] {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
world.shutdown()
