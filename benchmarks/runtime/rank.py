"""A rank of benchmarks.runtime.paired: allreduces of each size, and nothing for a while. Rank 0 prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence

import torch

import hvd_compress.torch as hvd
from benchmarks.ddp.powersgd import resnet50_shapes

IDLE_S = 3.0


def main(scale: float) -> None:
    """`scale` shortens everything, for a first look."""
    hvd.init()
    found: dict[str, float] = {}
    for name, numel, times in (
        ("1 kB", 256, 400),
        ("64 kB", 16_384, 400),
        ("1 MB", 1 << 18, 200),
        ("64 MB", 1 << 24, 12),
    ):
        found[name] = seconds([torch.zeros(numel)], max(5, int(times * scale)))
    found["161 gradients"] = seconds([torch.zeros(shape) for shape in resnet50_shapes()], max(3, int(10 * scale)))
    hvd.barrier()
    before, start = time.process_time(), time.monotonic()
    time.sleep(IDLE_S)
    found["idle"] = (time.process_time() - before) / (time.monotonic() - start)
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)
    hvd.barrier()
    hvd.shutdown()


def seconds(tensors: Sequence[torch.Tensor], times: int) -> float:
    """Return the median of as many rounds, in which all tensors are submitted, and then waited for."""
    taken = []
    for _ in range(times + times // 4):
        start = time.perf_counter()
        handles = [hvd.allreduce_async_(tensor, name=f"{number}", op=hvd.Sum) for number, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[times // 4 :])


if __name__ == "__main__":
    main(float(sys.argv[1]))
