"""One rank of exchange.py.

Four emulated hosts share the cores and the memory of one machine. On hosts of their own, kernels of different ranks do
not wait for one another, so ranks compress and decompress in turn here, each alone; then all communicate at once. What
they compute between two calls is computed by all at once, on the cores they share: so the calls are
measured by themselves, too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import hvd_compress.torch as hvd
from benchmarks.frame.lab import asked, tell
from benchmarks.frame.ranks import slowest
from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.policies.open_paths import open_collectives
from hvd_compress.request.request import Request

# isort: split
from mpi4py import MPI  # starts MPI, for which hvd_compress.torch has prepared it


def main() -> None:
    wanted = asked()
    hvd.init()
    from hvd_compress.engines.mpi import MpiEngine

    torch.set_num_threads(1)
    engine, compressor = MpiEngine(), TopK(wanted["ratio"])
    values = torch.randn(wanted["numel"], generator=torch.Generator().manual_seed(engine.rank))
    tell(wanted, horovod(values))
    found = open_collectives(Request(compressor), Layout.of(values.numel()), engine.capabilities)
    for way in [Path("dense", "ring"), *(each.path for each in found)]:
        tell(
            wanted, measure(engine, way, compressor, values, 2 if way.collective == "dense" else wanted["repetitions"])
        )
    engine.close()
    hvd.shutdown()


def measure(engine: Engine, way: Path, compressor: TopK, values: torch.Tensor, repetitions: int) -> dict:
    """Return the medians over steps of the longest phases of a rank."""
    collective = collectives.build(Cast() if way.collective == "dense" else compressor, way)
    buffer, residual, pending = (torch.empty_like(values) for _ in range(3))
    residual.copy_(values)
    layout = Layout.of(values.numel())
    count = compressor.kept(layout)
    sent = torch.zeros(count, dtype=torch.int32), torch.zeros(count)
    steps = []
    for step in range(repetitions + 1):
        buffer.copy_(values)
        work = Work(
            buffer, layout, step, 0, 1 / engine.world_size, BucketState(Residual(residual, pending, may_defer=True))
        )
        exchange = collective.exchange(work, engine.rank, engine.world_size)
        encode_s = in_turn(exchange.encode)
        together()
        communicate_s = seconds(lambda exchange=exchange: exchange.communicate(engine))
        decode_s = in_turn(exchange.decode)
        steps.append([slowest(encode_s), slowest(communicate_s), alone(engine, way, step, *sent), slowest(decode_s)])
    engine.take_calls()
    return row(str(way), *(statistics.median(phase) for phase in zip(*steps[1:], strict=True)))


def alone(engine: Engine, way: Path, step: int, indices: torch.Tensor, values: torch.Tensor) -> float:
    """Return the seconds of AR-Topk's calls without what ranks compute between them; 0 for other ways."""
    together()

    def both() -> None:
        engine.broadcast(indices, step % engine.world_size, way.broadcast)
        engine.allreduce(values, way.algorithm)

    return slowest(seconds(both)) if way.collective == "star" else 0.0


def row(way: str, encode_s: float, communicate_s: float, network_s: float, decode_s: float) -> dict:
    seconds = encode_s + communicate_s + decode_s
    return {
        "way": way,
        "seconds": seconds,
        "encode_s": encode_s,
        "communicate_s": communicate_s,
        "network_s": network_s,
        "decode_s": decode_s,
    }


def horovod(values: torch.Tensor) -> dict:
    """Return the median of three steps: all of it is network, as far as one can see from outside."""
    taken = []
    for number in range(3):
        copy = values.clone()
        together()
        taken.append(slowest(seconds(lambda name=f"{number}", copy=copy: hvd.allreduce_(copy, name=name))))
    return row("dense Horovod", 0.0, statistics.median(taken), 0.0, 0.0)


def in_turn(call: Callable[[], Any]) -> float:
    """Return the seconds of a call that no other rank makes at the same time."""
    taken = 0.0
    for rank in range(MPI.COMM_WORLD.size):
        together()
        if rank == MPI.COMM_WORLD.rank:
            taken = seconds(call)
    together()
    return taken


def together() -> None:
    """Wait for all ranks, asleep: one that polls would take the core of one that works."""
    arrived = MPI.COMM_WORLD.Ibarrier()
    while not arrived.Test():
        time.sleep(0.0005)


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
