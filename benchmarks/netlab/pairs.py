r"""What do collectives take by messages between pairs of ranks, and by MPI's and gloo's own, beside the floor?

    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- \
        python benchmarks/netlab/pairs.py --latency 5ms --bandwidth 100mbit

Each call by the slowest rank, in turns in one job, while nothing else computes; medians. The floor is one latency for
each round, 2 for an allreduce, and what a rank sends over the bandwidth. "own" is MPI's nonblocking collective, of an
allreduce the blocking one, and gloo's.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch
import torch.distributed as dist

import hvd_compress.torch  # noqa: F401 (sets up Open MPI as a training does)
from hvd_compress.engines.mpi import MpiEngine
from hvd_compress.engines.mpi_hosts import finish
from hvd_compress.engines.mpi_library import MPI
from hvd_compress.engines.torch_distributed import TorchEngine
from hvd_compress.netlab import Link
from hvd_compress.netlab.network import INTERFACE, address

PORT = 29_611
Call = Callable[[], object]


def calls(numel: int, mpi: MpiEngine, gloo: TorchEngine) -> dict[tuple[str, str], Call]:
    """Return each call by its verb and kind; a rank has `numel` elements, one shard of which is gathered."""
    ranks, comm, group = mpi.world_size, mpi._comm, gloo._group
    bucket = torch.ones(numel)
    parts = list(bucket.chunk(ranks))
    shard, gathered, lengths = parts[0].clone(), torch.empty(numel), [numel // ranks] * ranks
    places = list(gathered.chunk(ranks))
    return {
        ("all-to-all", "MPI, own"): lambda: finish(comm.Ialltoall(bucket.numpy(), gathered.numpy())),
        ("all-to-all", "MPI, pairs"): lambda: mpi.alltoall(parts, lengths),
        ("all-to-all", "gloo, own"): lambda: dist.all_to_all_single(gathered, bucket, group=group),
        ("all-to-all", "gloo, pairs"): lambda: gloo.alltoall(parts, lengths),
        ("all-gather", "MPI, own"): lambda: finish(comm.Iallgather(shard.numpy(), gathered.numpy())),
        ("all-gather", "MPI, pairs"): lambda: mpi.allgather(shard, lengths, out=gathered),
        ("all-gather", "gloo, own"): lambda: dist.all_gather(places, shard, group=group),
        ("all-gather", "gloo, pairs"): lambda: gloo.allgather(shard, lengths, out=gathered),
        ("allreduce", "MPI, own"): lambda: comm.Allreduce(MPI.IN_PLACE, bucket.numpy()),
        ("allreduce", "MPI, pairs"): lambda: mpi._allreduce_by_owners(bucket),
        ("allreduce", "MPI, engine"): lambda: mpi.allreduce(bucket),
        ("allreduce", "gloo, own"): lambda: dist.all_reduce(bucket, group=group),
        ("allreduce", "gloo, pairs"): lambda: gloo._allreduce_by_owners(bucket),
        ("allreduce", "gloo, engine"): lambda: gloo.allreduce(bucket),
    }


def taken(call: Call) -> tuple[float, float]:
    """Return the seconds of the slowest rank, and this one's of the processor."""
    MPI.COMM_WORLD.Barrier()
    start_s, used_s = time.perf_counter(), time.process_time()
    call()
    mine = time.perf_counter() - start_s, time.process_time() - used_s
    return MPI.COMM_WORLD.allreduce(mine[0], op=MPI.MAX), mine[1]


@click.command(help=__doc__)
@click.option("--latency", required=True, help="Of the lab, for the floor.")
@click.option("--bandwidth", required=True, help="Of the lab, for the floor.")
@click.option("--sizes", default="1000,30000,400000,1500000,7500000", show_default=True, help="Bytes of a rank.")
@click.option("--rounds", default=8, show_default=True)
def main(latency: str, bandwidth: str, sizes: str, rounds: int) -> None:
    world = MPI.COMM_WORLD
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    dist.init_process_group("gloo", f"tcp://{address(1)}:{PORT}", rank=world.rank, world_size=world.size)
    torch.set_num_threads(1)
    mpi, gloo = MpiEngine(), TorchEngine()
    mpi.locate()
    link = Link.parse(latency, bandwidth)
    if world.rank == 0:
        print("| verb | bytes | floor, ms | kind | ms | of the floor | processor, ms |\n|" + " --- |" * 7)
    for size in map(int, sizes.split(",")):
        numel = size // 4 // world.size * world.size
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for turn in range(rounds + 1):
            for what, call in calls(numel, mpi, gloo).items():
                seconds = taken(call)
                if turn:
                    found.setdefault(what, []).append(seconds)
        for (verb, kind), times in found.items():
            trips = 2 if verb == "allreduce" else 1
            floor_s = trips * (link.latency_s + 4 * numel * (world.size - 1) / world.size / link.bytes_per_s)
            wall_s, used_s = (statistics.median(column) for column in zip(*times, strict=True))
            if world.rank == 0:
                cells = f"{1e3 * wall_s:.1f} | {wall_s / floor_s:.2f} | {1e3 * used_s:.1f}"
                print(f"| {verb} | {size:,} | {1e3 * floor_s:.1f} | {kind} | {cells} |", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
