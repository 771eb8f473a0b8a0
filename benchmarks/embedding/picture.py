"""The picture of throughput against L, from rows that lab.py has written (the paper's Table 5.3).

    python benchmarks/embedding/picture.py rows.json benchmarks/results/embedding-lookahead.png

Printed: steps a second of each L, of the sharded table's.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import click
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parents[1]))
from turns import median_with_interval

PEERS = {"resident": ("resident rows, nothing synchronised", "0.4", ":"), "sharded": ("sharded", "tab:orange", "--")}


@click.command(help=__doc__)
@click.argument("rows", type=click.Path(exists=True, path_type=Path))
@click.argument("picture", type=click.Path(path_type=Path))
def main(rows: Path, picture: Path) -> None:
    taken = {row["method"]: row["taken"] for row in map(json.loads, rows.read_text().splitlines())}
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    sharded_s = taken["sharded"]
    ahead = sorted(int(name.removeprefix("L=")) for name in taken if name.startswith("L="))
    found = [
        median_with_interval([peer_s / own_s for peer_s, own_s in zip(sharded_s, taken[f"L={each}"], strict=True)])
        for each in ahead
    ]
    for each, (middle, *_) in zip(ahead, found, strict=True):
        click.echo(f"L = {each}: {middle:.2f}")
    below = [middle - low for middle, low, _ in found]
    above = [high - middle for middle, _, high in found]
    panel.errorbar(
        ahead, [middle for middle, *_ in found], [below, above], color="tab:red", marker="o", capsize=3, label="cache"
    )
    for name, (label, color, line) in PEERS.items():
        level = statistics.median(peer_s / own_s for peer_s, own_s in zip(sharded_s, taken[name], strict=True))
        panel.axhline(level, color=color, linestyle=line, label=label)
    panel.set(xscale="log", xlabel="L, batches looked ahead", ylabel="steps a second, of sharded", ylim=(0, None))
    panel.set_xticks(ahead, [str(each) for each in ahead])
    panel.minorticks_off()
    panel.grid(color="0.93")
    panel.legend(fontsize=8)
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main()
