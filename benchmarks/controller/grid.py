"""Is the controller's choice the right one? Every candidate is measured on an emulated network, and compared.

As root: `python benchmarks/controller/grid.py [--reduced]`. Writes build/controller/grid.json, cell by cell, and prints
the controller's choice and the formulas' choice against the best measured candidate of each. It takes an hour; with
--latency, --bandwidth and --numels it can be done in pieces, which come together in the same file. What is committed is
benchmarks/results/controller-grid.json: `--results` names it, for `--page` or to replace cells of it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path

import launching
from figures import FOLDER, read_grid, save_grid
from rich.console import Console
from rich.table import Table
from tables import best, head, regret, row

from hvd_compress.netlab import Lab

RESULTS = FOLDER / "grid.json"
FULL = {
    "latency": ("0.2ms", "1ms", "5ms", "20ms"),
    "bandwidth": ("1gbit", "200mbit", "50mbit"),
    "numels": "1000000,10000000,25600000",
    "ratios": "0.1,0.01,0.001",
}
REDUCED = {"latency": ("1ms", "20ms"), "bandwidth": ("1gbit", "50mbit"), "numels": "1000000", "ratios": "0.1,0.001"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reduced", action="store_true", help="8 cells of 1 M elements, in a few minutes")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--numels", help="instead of all: 1000000,10000000")
    parser.add_argument("--latency", help="instead of all: 1ms,5ms")
    parser.add_argument("--bandwidth", help="instead of all: 1gbit,50mbit")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="measure nothing, print the tables of what was measured")
    arguments = parser.parse_args()
    if arguments.page:
        print(page(read_grid(arguments.results)))
        return
    grid = dict(REDUCED if arguments.reduced else FULL)
    grid["numels"] = arguments.numels or grid["numels"]
    for name in ("latency", "bandwidth"):
        grid[name] = tuple((getattr(arguments, name) or ",".join(grid[name])).split(","))
    cells = read_grid(arguments.results) if arguments.results.exists() else []
    with Lab(arguments.hosts, "1ms", "1gbit") as lab:
        for latency, bandwidth in itertools.product(grid["latency"], grid["bandwidth"]):
            lab.set(latency, bandwidth)
            fresh = run(lab, latency, bandwidth, grid["numels"], grid["ratios"])
            replaced = {place(cell) for cell in fresh}
            cells = [cell for cell in cells if place(cell) not in replaced] + fresh
            save_grid(arguments.results, cells)
    show(cells)


def run(lab: Lab, latency: str, bandwidth: str, numels: str, ratios: str) -> list[dict]:
    start = time.monotonic()
    cells = launching.run(lab, "cell.py", latency, bandwidth, numels, ratios, 100)
    for cell in cells:
        print(line(cell), f"({time.monotonic() - start:.0f} s)", flush=True)
    return cells


def place(cell: dict) -> tuple:
    return cell["latency"], cell["bandwidth"], cell["numel"], cell["ratio"]


def line(cell: dict) -> str:
    return (
        f"{cell['latency']:>6} {cell['bandwidth']:>8} {cell['numel']:>9} {cell['ratio']:<6} "
        f"chosen {cell['chosen']:<36} "
        f"{regret(cell, cell['chosen']):6.1%}  best {best(cell):<38} {cell['measured'][best(cell)] * 1e3:8.1f} ms  "
        f"formulas {cell['formulas']:<24} {regret(cell, cell['formulas']):6.1%}  {cell['steps']} steps"
    )


def show(cells: list[dict]) -> None:
    table = Table("choice by", "cells", "within 10 % of the best", "median regret", "worst")
    for words, name in (("controller", "chosen"), ("formulas alone", "formulas")):
        table.add_row(words, *summary(cells, name))
    Console().print(table)


def summary(cells: list[dict], name: str) -> tuple[str, str, str, str]:
    """Return how many cells there are, how many are right, and the median and the largest regret, in words."""
    regrets = [regret(cell, cell[name]) for cell in cells]
    known = [value for value in regrets if value == value]
    missing = len(cells) - len(known)
    within = sum(value <= 0.10 for value in known)
    worst = f"{max(known):.0%}" + (f", {missing} not measured: predicted over 2 x" if missing else "")
    return str(len(cells)), f"{within} ({within / len(cells):.0%})", f"{statistics.median(known):.1%}", worst


def page(cells: list[dict]) -> str:
    """Return the tables of benchmarks/results/controller-grid.md."""
    lines = [*head("choice by", "cells", "within 10 % of the best", "median regret", "worst")]
    lines += [row(words, *summary(cells, name)) for words, name in (("controller", "chosen"), ("formulas", "formulas"))]
    lines += ["", *head("network", "cells", "within 10 %", "median regret", "worst", "formulas within", "worst")]
    for latency, bandwidth in dict.fromkeys((cell["latency"], cell["bandwidth"]) for cell in cells):
        here = [cell for cell in cells if (cell["latency"], cell["bandwidth"]) == (latency, bandwidth)]
        _, within, _, worst = summary(here, "formulas")
        lines.append(row(f"{latency} {bandwidth}", *summary(here, "chosen"), within, worst))
    lines += ["", *head("cell that misses", "chosen", "regret", "best", "ms")]
    for cell in cells:
        if regret(cell, cell["chosen"]) > 0.10:
            where = f"{cell['latency']} {cell['bandwidth']}, {cell['numel']:,} at {cell['ratio']}"
            taken = f"{cell['measured'][best(cell)] * 1e3:.1f}"
            lines.append(row(where, cell["chosen"], f"{regret(cell, cell['chosen']):.1%}", best(cell), taken))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
