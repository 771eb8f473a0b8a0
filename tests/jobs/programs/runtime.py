"""Every collective of the runtime by name, over whatever the launcher allows; then a misfortune of one rank.

usage: runtime.py MISFORTUNE RANK
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from meeting import meet

from hvd_compress.errors import HvdCompressError
from hvd_compress.runtime import api as hvd

Path(os.environ["JOB_FOLDER"], f"{os.getpid()}.pid").write_text(str(os.getpid()))


def every_collective() -> None:
    """Check each against what it must be."""
    rank, size = hvd.rank(), hvd.size()
    ranks = torch.arange(size)
    ones = torch.ones(3, 2)
    leaf = (ones * (rank + 1)).requires_grad_()
    total = hvd.allreduce(leaf, op=hvd.Sum, name="sum")
    assert torch.equal(total, ones * (ranks + 1).sum()), total
    total.sum().backward()
    assert torch.equal(leaf.grad, ones * size), leaf.grad
    mean = hvd.allreduce_(ones.double() * rank, name="mean")
    assert torch.equal(mean, ones.double() * ranks.double().mean()), mean
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64):
        largest = hvd.allreduce(torch.full((5,), rank, dtype=dtype), op=hvd.Max)
        assert torch.equal(largest, torch.full((5,), size - 1, dtype=dtype)), largest
    grouped = hvd.grouped_allreduce([ones * rank, ones.int() * rank], op=hvd.Sum, name="group")
    assert [each.dtype for each in grouped] == [torch.float32, torch.int32]
    assert all(torch.equal(each.float(), ones * ranks.sum()) for each in grouped)
    rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)), name="rows")
    assert rows[:, 0].tolist() == [float(each) for each in range(size) for _ in range(each + 1)]
    assert hvd.broadcast(ones * rank, size - 1, name="last").tolist() == (ones * (size - 1)).tolist()
    received, counts = hvd.alltoall(torch.full((size,), float(rank)), torch.ones(size).int(), name="each")
    assert received.tolist() == ranks.float().tolist(), received
    assert counts.tolist() == [1] * size
    scattered = hvd.reducescatter(torch.arange(2.0 * size), op=hvd.Sum)
    assert scattered.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size], scattered
    hashed = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([1.0]), (size,), check_invariants=True)
    added = hvd.synchronize(hvd.sparse_allreduce_async(hashed, "hashed", hvd.Sum))
    assert added.to_dense().tolist() == [1.0] * size
    told = hvd.broadcast_object({"rank": rank}, 0)
    assert told == {"rank": 0}, told
    assert hvd.allgather_object("x" * rank) == ["x" * each for each in range(size)]
    with torch.inference_mode():
        assert hvd.allreduce_(torch.ones(2), op=hvd.Sum).tolist() == [size] * 2
    whole = hvd.allreduce(ones.clone().requires_grad_(), name="whole")
    whole.mul_(2).sum().backward()  # it is no view
    evens = hvd.add_process_set(range(0, size, 2))
    if evens.included():
        partial = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=evens)
        assert partial.item() == evens.size()
    assert hvd.remove_process_set(evens)
    gathered = hvd.grouped_allgather([ones[:1] * rank, ones.int()])
    assert [len(each) for each in gathered] == [size, size * len(ones)]
    scattered = hvd.grouped_reducescatter([torch.arange(2.0 * size), torch.ones(size, 2)], op=hvd.Sum)
    assert [each.shape[0] for each in scattered] == [2, 1]
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
    assert hvd.is_homogeneous()
    handle = hvd.allreduce_async(ones)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle).tolist() == ones.tolist()
    for _ in range(rank):
        hvd.allreduce(torch.ones(2), op=hvd.Sum)
    assert hvd.join() == size - 1
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [size] * 2
    hvd.barrier()


def misfortune(kind: str, unlucky: int) -> None:
    """Meet it, on one rank; others wait for it, whatever the launcher wants of them."""
    if hvd.rank() == unlucky:
        if kind == "dies":
            os._exit(7)
        if kind == "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if kind == "leaves":
            hvd.shutdown()
            return
        if kind == "raises":
            raise RuntimeError("the misfortune of the test")
        if kind == "sleeps":
            time.sleep(6)
            return
        shape, name = {"another shape": (4, "x"), "another name": (3, "y")}[kind]
        hvd.allreduce(torch.ones(shape), name=name)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.allreduce(torch.ones(3), name="x")


def init_alone() -> None:
    """The first rank begins anew, and the others do not come."""
    hvd.barrier()
    hvd.shutdown()
    if hvd.rank():
        raise RuntimeError("the misfortune of the test")
    hvd.init()


meet()
hvd.init()
every_collective()
print(f"[rank {hvd.rank()}] has done all {'horovod' in sys.modules}", flush=True)
if sys.argv[1] != "none":
    try:
        if sys.argv[1] == "begins anew alone":
            init_alone()
        misfortune(sys.argv[1], int(sys.argv[2]))
    except HvdCompressError as error:
        print(f"[rank {hvd.rank()}] {type(error).__name__}: {error}", flush=True)
        if sys.argv[1] == "is stopped":  # the first that ends has the launcher wake and end the others
            meet(before="end", without=1)
        sys.exit(3)
hvd.shutdown()
