"""The tables and the picture of what quality.py has measured.

    python benchmarks/attention/quality_page.py build/attention-quality.json

Writes its part of benchmarks/results/attention.md, and attention-quality.png beside it. An increase is that of the
perplexity over the whole cache's, of the same windows; its 95 % interval is by bootstrap over windows.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parent))
from sections import PAGE, renew, table

DRAWS = 2000
ASKED_SHARE, ASKED_INCREASE = 0.8, 1.0
"""At this share of the cache at most so many per cent."""
Increase = tuple[float, float, float]
"""Per cent, and its 95 % interval."""
RANDOM = "random clusters"
WHOLE = "told by all tokens"
LINES = {
    "CHAI": ("CHAI: five first tokens", "tab:red", "o", "-"),
    "CHAI-static": ("CHAI-static: samples", "tab:blue", "s", "-"),
    WHOLE: ("all tokens of the window (bound)", "tab:green", "^", ":"),
    RANDOM: ("random clusters, mean of seeds", "0.45", "v", "--"),
    "dropped heads": ("dropped heads", "tab:orange", "D", "--"),
}
"""By method: its label, color, marker and line."""


class Figures:
    """What quality.py has written: rows by method, and layers."""

    def __init__(self, found: dict[str, Any]):
        self.about, self.layers, self.rows = found["about"], found["layers"], found["rows"]
        self.full = next(row for row in self.rows if row["method"] == "full")
        self._drawn = torch.randint(
            len(self.full["windows"]), (DRAWS, len(self.full["windows"])), generator=torch.Generator().manual_seed(1)
        )

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the rows of a method, the largest cache first; of random clusters the mean of seeds."""
        rows = [row for row in self.rows if row["method"] == method]
        if method == RANDOM:
            rows = [_mean(self._seeds(share)) for share in {row["share"] for row in self.of("CHAI")}]
        return sorted(rows, key=lambda row: -row["share"])

    def increase(self, row: dict[str, Any], part: str = "windows") -> Increase:
        """Return the increase of perplexity over that of the whole cache."""
        more = torch.tensor(row[part], dtype=torch.float64) - torch.tensor(self.full[part], dtype=torch.float64)
        means = more[self._drawn].mean(1).sort().values
        low, high = means[round(0.025 * DRAWS)], means[round(0.975 * DRAWS) - 1]
        return tuple(100 * math.expm1(each) for each in (more.mean(), low, high))

    def seeds(self, share: float) -> tuple[float, float]:
        """Return the lowest and the highest increase among seeds of random clusters."""
        found = [self.increase(row)[0] for row in self._seeds(share)]
        return min(found), max(found)

    def _seeds(self, share: float) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["method"].startswith(f"{RANDOM} ") and row["share"] == share]


def _mean(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parts = {part: [fmean(each) for each in zip(*(row[part] for row in rows), strict=True)] for part in _PARTS}
    return {**rows[0], "method": RANDOM, **parts}


_PARTS = ("windows", "late")


def text_of(figures: Figures) -> str:
    """Return the tables."""
    loss = fmean(figures.full["windows"])
    return "\n\n".join(
        (
            f"Whole cache: perplexity {math.exp(loss):.3f} a byte, {loss / math.log(2):.3f} bits. Increase of "
            "perplexity in per cent, with its 95 % interval over windows; of random clusters the mean of seeds, the "
            "lowest and the highest one:",
            _by_share(figures),
            "![increase of perplexity against cache saved](attention-quality.png)",
            "By how many tokens of a sequence tell its clusters:",
            _by_tokens(figures),
            f"By how the clusters are shared out among layers, with {ASKED_SHARE:.0%} of the cache, and clusters in "
            "one layer alone:",
            _by_allocation(figures),
            "How alike heads of a layer are, and how far clusters agree with those that the whole window tells "
            "(adjusted Rand index, mean over windows; 0 is chance):",
            _by_layer(figures),
        )
    )


def _by_share(figures: Figures) -> str:
    methods = {name: figures.of(name) for name in LINES}
    rows = []
    for number, row in enumerate(figures.of("CHAI")):
        low, high = figures.seeds(row["share"])
        cells = {name: _cell(figures.increase(each[number])) for name, each in methods.items()}
        cells[RANDOM] = f"{figures.increase(methods[RANDOM][number])[0]:.2f} ({low:.2f} to {high:.2f})"
        rows.append((f"{row['share']:.1%}", _k(row), f"{row['plateau']:.3f}", *cells.values()))
    return table(("cache", "k of layers", "plateau", "CHAI", "CHAI-static", WHOLE, RANDOM, "dropped heads"), rows)


def _by_tokens(figures: Figures) -> str:
    at = min(figures.of("CHAI"), key=lambda row: abs(row["share"] - ASKED_SHARE))
    told = [row for row in figures.rows if row["clusters"] == at["clusters"] and not row["method"].startswith(RANDOM)]
    rows = [(row["method"], *(_cell(figures.increase(row, part)) for part in _PARTS)) for row in told]
    return table((f"clusters, {at['share']:.1%} of the cache", "all bytes", "second half of each window"), rows)


def _by_allocation(figures: Figures) -> str:
    methods = ("CHAI", "CHAI-static", WHOLE)
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in figures.rows:
        method, _, name = row["method"].partition(", ")
        if name:
            cells = found.setdefault((name, f"{row['share']:.1%}", _k(row)), dict.fromkeys(methods, ""))
            cells[method] = _cell(figures.increase(row))
    return table(
        ("shared out by", "cache", "k of layers", *methods), [(*key, *cells.values()) for key, cells in found.items()]
    )


def _by_layer(figures: Figures) -> str:
    rows = []
    for number, layer in enumerate(figures.layers):
        correlation = torch.tensor(layer["correlation"], dtype=torch.float64)
        heads = len(correlation)
        pairs = correlation[torch.ones(heads, heads).triu(1).bool()]
        nearest = (correlation - 2 * torch.eye(heads)).amax(1)
        left = layer["errors"][layer["clusters"] - 1] / layer["errors"][0]
        rows.append(
            (
                number,
                layer["clusters"],
                f"{left:.3f}",
                ", ".join(f"{float(pairs.quantile(each)):.2f}" for each in (0.1, 0.5, 0.9)),
                ", ".join(str(int((nearest > least).sum())) for least in _NEAR),
                *(f"{layer['agreement'][name]:.2f}" for name in ("five", "static")),
            )
        )
    near = f"heads with another above {', '.join(map(str, _NEAR))}"
    quantiles = "correlation of two heads: 10 %, median, 90 %"
    return table(("layer", "k", "E(k) / E(1)", quantiles, near, "five tokens agree", "samples agree"), rows)


_NEAR = (0.95, 0.9, 0.8)


def _cell(increase: Increase) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*increase)


def _k(row: dict[str, Any]) -> str:
    return ", ".join(map(str, row["clusters"]))


def draw(figures: Figures, path: Path) -> None:
    """Draw the increase of perplexity against the bytes saved, a line a method (CHAI, Table 6.2 and Figure 6.8)."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    lowest = 0.0
    for name, (label, color, marker, line) in LINES.items():
        rows = figures.of(name)
        found = [figures.increase(row) for row in rows]
        if name == RANDOM:
            found = [(each[0], *figures.seeds(row["share"])) for each, row in zip(found, rows, strict=True)]
        lowest = min(lowest, *(low for _, low, _ in found))
        panel.errorbar(
            [100 * (1 - row["share"]) for row in rows],
            [middle for middle, *_ in found],
            [[middle - low for middle, low, _ in found], [high - middle for middle, _, high in found]],
            color=color,
            marker=marker,
            linestyle=line,
            markersize=4.5,
            linewidth=1.4,
            capsize=2.5,
            label=label,
        )
    panel.plot([100 * (1 - ASKED_SHARE)], [ASKED_INCREASE], "k*", markersize=10, linestyle="", label="asked: below")
    panel.set(xlabel="cache saved, % of bytes", ylabel="increase of perplexity, %", xlim=(0, None))
    panel.set_yscale("symlog", linthresh=1.0)  # an increase may be none
    panel.set_ylim(bottom=lowest)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(color="0.93")
    panel.set_axisbelow(True)
    panel.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=100)


@click.command(help=__doc__)
@click.argument("figures", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(figures: Path, page: Path) -> None:
    found = Figures(json.loads(figures.read_text()))
    renew(page, "quality", text_of(found))
    draw(found, page.with_name("attention-quality.png"))
    click.echo(f"wrote {page}")


if __name__ == "__main__":
    main()
