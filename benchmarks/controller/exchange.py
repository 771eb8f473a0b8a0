"""One large AR-Topk exchange on an emulated network, next to dense Horovod and the network's floor.

As root: `python -m benchmarks.controller.exchange`. By default the exchange that the project's bound is about: 25.6 M
elements at ratio 0.01, 4 hosts, 1 ms, 1 Gbit/s. Prints every way to carry it; dense Horovod and dense by this package
were measured in the same run.
"""

from __future__ import annotations

import argparse
import math

from benchmarks.frame.lab import HOSTS, found
from benchmarks.frame.page import table
from hvd_compress.netlab import Link


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--network", default="1gbit-1ms")
    parser.add_argument("--numel", type=int, default=25_600_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    wanted = {"numel": given.numel, "ratio": given.ratio, "repetitions": given.repetitions}
    rows = found("benchmarks.controller.exchanging", wanted, given.network, hosts=given.hosts)
    bandwidth, latency = given.network.split("-")
    floor_s = floor(given.hosts, Link.parse(latency, bandwidth), given.numel, given.ratio)
    print(table(TITLES, lines(rows, floor_s)))
    print(f"\nfloor of AR-Topk on the network {floor_s * 1e3:.1f} ms; medians of the longest rank")


def floor(hosts: int, link: Link, numel: int, ratio: float) -> float:
    """Return the seconds of design.md's floor for AR-Topk: alpha * 3 log2 N + (4k + 2 (N-1)/N 4k) beta."""
    size = 4 * ratio * numel
    bytes_sent = size + 2 * (hosts - 1) / hosts * size
    return 3 * math.log2(hosts) * link.latency_s + bytes_sent / link.bytes_per_s


TITLES = (
    *("way", "encode", "communicate", "collectives alone", "decode", "all [ms]"),
    *("alone / floor", "dense Horovod / all"),
)


def lines(rows: list[dict], floor_s: float) -> list[list[str]]:
    """Return the cells of the table, a line for each way, the fastest first."""
    dense_s = next(way["seconds"] for way in rows if way["way"] == "dense Horovod")
    phases, found = ("encode_s", "communicate_s", "network_s", "decode_s", "seconds"), []
    for way in sorted(rows, key=lambda way: way["seconds"]):
        over = f"{way['network_s'] / floor_s:.2f}" if way["way"].startswith("star") else ""
        taken = [f"{way[phase] * 1e3:.1f}" if way[phase] else "" for phase in phases]
        found.append([way["way"], *taken, over, f"{dense_s / way['seconds']:.1f}"])
    return found


if __name__ == "__main__":
    main()
