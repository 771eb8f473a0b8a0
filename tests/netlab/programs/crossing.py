"""Ranks of a lab: say where they are, and what half a round trip from rank 0 to the last rank takes.

crossing.py once           the median of a few, then 4 MB from rank 0 to the last
crossing.py until SECONDS  again and again, until it takes as long
"""

from __future__ import annotations

import socket
import statistics
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
last = world.size - 1
packet = bytearray(8)


def one_way_s() -> float:
    begin = time.perf_counter()
    if world.rank == 0:
        world.Send(packet, last)
        world.Recv(packet, last)
    elif world.rank == last:
        world.Recv(packet, 0)
        world.Send(packet, 0)
    return world.bcast((time.perf_counter() - begin) / 2)


def transfer_s() -> float:
    data = bytearray(4_000_000)
    world.Barrier()
    begin = time.perf_counter()
    if world.rank == 0:
        world.Send(data, last)
        world.Recv(packet, last)
    elif world.rank == last:
        world.Recv(data, 0)
        world.Send(packet, 0)
    return time.perf_counter() - begin


print(f"rank {world.rank} of {world.size} on {socket.gethostname()}", flush=True)
one_way_s()
if sys.argv[1] == "until":
    while one_way_s() < float(sys.argv[2]):
        time.sleep(0.01)
    if world.rank == 0:
        print("it took as long", flush=True)
else:
    latency = statistics.median(one_way_s() for _ in range(5))
    took = transfer_s()
    if world.rank == 0:
        print(f"latency {latency} transfer {took}", flush=True)
