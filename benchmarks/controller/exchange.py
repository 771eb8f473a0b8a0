"""One large AR-Topk exchange on an emulated network, beside dense Horovod and the network's floor.

As root: `python benchmarks/controller/exchange.py`. By default the exchange that the project's bound is about: 25.6 M
elements at ratio 0.01, 4 hosts, 1 ms, 1 Gbit/s. Prints, and writes to benchmarks/results/exchange.json, every way to
carry it; dense Horovod and dense by this package were measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import launching
from rich.console import Console
from rich.table import Table

from hvd_compress.netlab import Lab
from hvd_compress.units import parse_bandwidth, parse_latency

RESULTS = Path(__file__).resolve().parents[1] / "results" / "exchange.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--latency", default="1ms")
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--numel", type=int, default=25_600_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with Lab(given.hosts, given.latency, given.bandwidth) as lab:
        rows = launching.run(lab, "exchanging.py", given.numel, given.ratio, given.repetitions)
    floor_s = floor(given.hosts, given.latency, given.bandwidth, given.numel, given.ratio)
    described = {name: value for name, value in vars(given).items() if name not in ("results", "repetitions")}
    given.results.write_text(json.dumps({**described, "floor_s": floor_s, "rows": rows}, indent=1))
    show(rows, floor_s)


def floor(hosts: int, latency: str, bandwidth: str, numel: int, ratio: float) -> float:
    """Return the seconds of design.md's floor for AR-Topk: alpha * 3 log2 N + (4k + 2 (N-1)/N 4k) beta."""
    size = 4 * ratio * numel
    bytes_sent = size + 2 * (hosts - 1) / hosts * size
    return 3 * math.log2(hosts) * parse_latency(latency) + bytes_sent / parse_bandwidth(bandwidth)


def show(rows: list[dict], floor_s: float) -> None:
    dense_s = next(row["seconds"] for row in rows if row["way"] == "dense Horovod")
    phases = ("encode_s", "communicate_s", "network_s", "decode_s", "seconds")
    titles = ("encode", "communicate", "collectives alone", "decode", "all [ms]")
    table = Table("way", *titles, "alone / floor", "dense Horovod / all")
    for row in sorted(rows, key=lambda row: row["seconds"]):
        over = f"{row['network_s'] / floor_s:.2f}" if row["way"].startswith("star") else ""
        taken = [f"{row[phase] * 1e3:.1f}" if row[phase] else "" for phase in phases]
        table.add_row(row["way"], *taken, over, f"{dense_s / row['seconds']:.1f}")
    console = Console(width=140)
    console.print(table, f"floor of AR-Topk on the network {floor_s * 1e3:.1f} ms; medians of the longest rank")


if __name__ == "__main__":
    main()
