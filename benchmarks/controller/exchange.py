"""One large AR-Topk exchange on an emulated network, beside dense Horovod and the network's floor.

As root: `python -m benchmarks.controller.exchange`. By default the exchange that the project's bound is about: 25.6 M
elements at ratio 0.01, 4 hosts, 1 ms, 1 Gbit/s. Prints, and writes to build/controller/exchange.json, every way to
carry it; dense Horovod and dense by this package were measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.controller import launching
from benchmarks.controller.figures import FOLDER, save
from benchmarks.controller.tables import head, row
from hvd_compress.netlab import Lab
from hvd_compress.units import parse_bandwidth, parse_latency

RESULTS = FOLDER / "exchange.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--latency", default="1ms")
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--numel", type=int, default=25_600_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="measure nothing, print the table of what was measured")
    given = parser.parse_args()
    if given.page:
        found = json.loads(given.results.read_text())
        print("\n".join([*head(*TITLES), *(row(*line) for line in lines(found["rows"], found["floor_s"]))]))
        return
    with Lab(given.hosts, given.latency, given.bandwidth) as lab:
        rows = launching.run(lab, "exchanging", given.numel, given.ratio, given.repetitions)
    floor_s = floor(given.hosts, given.latency, given.bandwidth, given.numel, given.ratio)
    described = {name: value for name, value in vars(given).items() if name not in ("results", "repetitions", "page")}
    save(given.results, {**described, "floor_s": floor_s, "rows": rows})
    show(rows, floor_s)


def floor(hosts: int, latency: str, bandwidth: str, numel: int, ratio: float) -> float:
    """Return the seconds of design.md's floor for AR-Topk: alpha * 3 log2 N + (4k + 2 (N-1)/N 4k) beta."""
    size = 4 * ratio * numel
    bytes_sent = size + 2 * (hosts - 1) / hosts * size
    return 3 * math.log2(hosts) * parse_latency(latency) + bytes_sent / parse_bandwidth(bandwidth)


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


def show(rows: list[dict], floor_s: float) -> None:
    table = Table(*TITLES)
    for line in lines(rows, floor_s):
        table.add_row(*line)
    console = Console(width=140)
    console.print(table, f"floor of AR-Topk on the network {floor_s * 1e3:.1f} ms; medians of the longest rank")


if __name__ == "__main__":
    main()
