"""Milliseconds of a collective in an emulated network (root): ours over gloo's ranks, gloo's own, and the floor.

    python -m benchmarks.engines.paired --network 1gbit-0.2ms
    python -m benchmarks.engines.paired --network 100mbit-5ms

The floor is the latency of the rounds that a collective cannot do without, and what a host's line must carry.
"""

from __future__ import annotations

from statistics import median

import click

from benchmarks.frame.lab import found
from benchmarks.frame.page import ms, ratio_cells, table
from hvd_compress.units import parse_bandwidth, parse_latency

TITLES = (
    "verb",
    "bytes of a rank",
    "floor, ms",
    "ours, ms",
    "of the floor",
    "gloo's own, ms",
    "ours, of gloo's",
    "95 %",
)


def floor_s(verb: str, nbytes: int, ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Return what a collective takes at least."""
    share = (ranks - 1) / ranks
    moved = {"allreduce": 2 * share, "alltoall": share, "allgather": ranks - 1.0, "broadcast": 1.0}[verb]
    return (2 if verb == "allreduce" else 1) * latency_s + moved * nbytes / bytes_per_s


@click.command(help=__doc__)
@click.option("--hosts", default=4, show_default=True, help="With a rank each.")
@click.option("--network", default="1gbit-0.2ms", show_default=True)
@click.option("--sizes", default="1024,65536,1048576,16777216", show_default=True, help="Bytes of a rank's tensor.")
@click.option("--rounds", default=8, show_default=True)
def main(hosts: int, network: str, sizes: str, rounds: int) -> None:
    wanted = {"sizes": [int(each) for each in sizes.split(",")], "rounds": rounds}
    (job,) = found("benchmarks.engines.rank", wanted, network, hosts=hosts)
    bandwidth, latency = network.split("-")
    line = parse_latency(latency), parse_bandwidth(bandwidth)
    rows = []
    for verb, nbytes, taken in job["found"]:
        least_s = floor_s(verb, nbytes, hosts, *line)
        ours, theirs = ([each[place] for each in taken] for place in range(2))
        ratio = ratio_cells([mine / other for mine, other in zip(ours, theirs, strict=True)])
        rows.append([verb, nbytes, ms([least_s]), ms(ours), f"{median(ours) / least_s:.2f}", ms(theirs), *ratio])
    print(table(TITLES, rows))


if __name__ == "__main__":
    main()
