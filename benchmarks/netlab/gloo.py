"""How gloo gathers from all ranks, by size, beside the floor: by its all-gather, an all-to-all, or N broadcasts.

    python benchmarks/netlab/gloo.py [--hosts 4] [--latency 5ms] [--bandwidth 100mbit]

Root. `engines/torch_distributed.py` chooses by this table. The floor is one latency, and (N-1) M over the bandwidth.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

import click

from hvd_compress.netlab import Lab, Link
from hvd_compress.netlab.network import INTERFACE

SIZES = (4 << 10, 64 << 10, 256 << 10)
REPETITIONS = 7
PORT = 29_611


def measure() -> dict[str, list[float]]:
    """On every rank: median seconds of each call at each size, the slowest rank's."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    dist.init_process_group("gloo", f"tcp://{world.bcast(_address())}:{PORT}", rank=world.rank, world_size=world.size)
    found: dict[str, list[float]] = {}
    for size in SIZES:
        own, gathered = torch.zeros(size, dtype=torch.uint8), torch.empty(size * world.size, dtype=torch.uint8)
        parts = list(torch.split(gathered, size))
        calls = {
            "all-gather": lambda parts=parts, own=own: dist.all_gather(parts, own),
            "all-to-all": lambda gathered=gathered, own=own: dist.all_to_all_single(gathered, own.repeat(world.size)),
            "broadcasts": lambda parts=parts: [dist.broadcast(part, rank) for rank, part in enumerate(parts)],
        }
        for name, call in calls.items():
            call()
            times = []
            for _ in range(REPETITIONS):
                world.Barrier()
                begin = time.perf_counter()
                call()
                times.append(world.allreduce(time.perf_counter() - begin, op=MPI.MAX))
            found.setdefault(name, []).append(statistics.median(times))
    dist.destroy_process_group()
    return found if world.rank == 0 else {}


def _address() -> str:
    """Return this host's address in the lab: its hostname resolves nowhere."""
    answer = subprocess.run(["ip", "-json", "addr", "show", INTERFACE], capture_output=True, text=True, check=True)
    return next(a["local"] for a in json.loads(answer.stdout)[0]["addr_info"] if a["family"] == "inet")


@click.command(help=__doc__)
@click.option("--hosts", default=4, show_default=True)
@click.option("--latency", default="5ms", show_default=True)
@click.option("--bandwidth", default="100mbit", show_default=True)
def main(hosts: int, latency: str, bandwidth: str) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    with Lab(hosts, latency, bandwidth) as lab:
        job = lab.run([sys.executable, __file__, "--rank"], env=environment, stdout=subprocess.PIPE, text=True)
    if job.returncode != 0:
        sys.exit(job.returncode)
    found, link = json.loads(job.stdout.splitlines()[-1]), Link.parse(latency, bandwidth)
    floors = [link.latency_s + (hosts - 1) * size / link.bytes_per_s for size in SIZES]
    click.echo(f"{hosts} hosts, {link}; ms, and times the floor\n")
    click.echo("| gloo | " + " | ".join(f"{size >> 10} KiB" for size in SIZES) + " |")
    click.echo("| --- |" + " ---: |" * len(SIZES))
    for name, times in found.items():
        cells = [f"{1e3 * took:.0f} ({took / floor:.2f})" for took, floor in zip(times, floors, strict=True)]
        click.echo(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    if "--rank" in sys.argv:
        if figures := measure():
            print(json.dumps(figures))
    else:
        main()
