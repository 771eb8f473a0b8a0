"""Up to 512 ranks, simulated: does what a rank sends grow with their number where the paper's collective's does not?

`python -m benchmarks.ranks` writes the tables of benchmarks/results/ranks.md and ranks.png to build/ranks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.frame.circumstances import told
from benchmarks.frame.page import table
from benchmarks.frame.store import ROOT
from benchmarks.ranks import counted, predicted
from hvd_compress.buckets.layout import Layout

NUMEL = 65536
FLAGGED = 0.1
"""By which power of the number of ranks bytes may grow faster than the model's."""
ALPHA, BETA = 50e-6, 8e-9  # 1 Gbit/s
Counts = Mapping[tuple[int, str, str], Sequence[counted.Count]]
TITLES = ("bucket", "compressor", "path", "up to ranks", "sent there, bytes", "over model", "more, bytes a message")
DRAWN = ("dense: dense", "int4: alltoall-allgather", "int4: allgather", "topk 1 %: star", "topk 1 %: allgather",
         "efsign: allgather", "powersgd: allreduce", "int4: gather-broadcast")  # fmt: skip


def count_all(most: int, limit_s: float) -> Iterator[tuple[tuple[int, str, str], list[counted.Count]]]:
    """Yield the counts of each path; of int4 in a small bucket, too, in which headers are much."""
    for numel, name in [*((NUMEL, name) for name in counted.COMPRESSORS), (NUMEL // 16, "int4")]:
        layout, compressor = Layout.of((numel // 64, 64)), counted.COMPRESSORS[name]
        for path in counted.paths(compressor, layout, most):
            found = list(counted.counts(compressor, path, layout, most, limit_s))
            print(numel, name, path, found[-1] if found else "too large", flush=True)
            if len(found) > 1:
                yield (numel, name, str(path)), found


def cells(key: tuple[int, str, str], found: Sequence[counted.Count]) -> list[object]:
    before, last = found[-2:]
    own = math.log2(last.mean_bytes / before.mean_bytes)
    most = math.log2(last.most_bytes / before.most_bytes)
    row: list[object] = [*key, last.ranks, f"{last.mean_bytes:,.0f}"]
    if before.modelled is None or last.modelled is None:
        return [*row, "", "", f"{own:.2f}", "", f"{most:.2f}", ""]
    more = (last.mean_bytes - last.modelled) / last.mean_messages
    model = math.log2(last.modelled / before.modelled)
    ratio = last.mean_bytes / last.modelled
    flag = "**grows**" if own > model + FLAGGED else ""
    return [*row, f"{ratio:.3f}", f"{more:.0f}", f"{own:.2f}", f"{model:.2f}", f"{most:.2f}", flag]


def choice(ranks: int) -> list[object]:
    row: list[object] = [ranks, f"{1e3 * predicted.arms('near', ALPHA, BETA, ranks)[0].predicted:.0f}"]
    for quality in ("near", "any"):
        best = min(predicted.arms(quality, ALPHA, BETA, ranks), key=lambda arm: arm.predicted * arm.candidate.factor)
        row += [predicted.label(best), f"{1e3 * best.predicted:.0f}"]
    return row


def draw(found: Counts, rank_counts: Sequence[int], path: Path) -> None:
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(DRAWN):
        compressor, _, collective = name.partition(": ")
        own = found.get((NUMEL, compressor, collective), ())
        sizes, color = [one.ranks for one in own], f"C{number}"
        left.plot(sizes, [one.mean_bytes for one in own], "o-", color=color, label=name, markersize=3)
        left.plot(sizes, [one.modelled for one in own], ":", color=color)
    left.set(title=f"bucket of {NUMEL:,} elements", ylabel="bytes that a rank sends (dotted: model)")
    by_arm: dict[str, list[tuple[int, float]]] = {}
    for ranks in rank_counts:
        for arm in predicted.arms("any", ALPHA, BETA, ranks):
            by_arm.setdefault(predicted.label(arm), []).append((ranks, arm.predicted))
    for number, (name, points) in enumerate(by_arm.items()):
        right.plot(*zip(*points, strict=True), marker="o", color=f"C{number % 10}", label=name, markersize=3,
                   linestyle="-" if number < 10 else "--")  # fmt: skip
    right.set(title='auto("any"), 100 MB, 1 Gbit/s, 50 us', ylabel="seconds by formulas")
    for panel in (left, right):
        panel.set(xscale="log", yscale="log", xlabel="ranks")
        panel.set_xticks(rank_counts, [str(ranks) for ranks in rank_counts])
        panel.grid(color="0.93")
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=100)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=512, help="ranks")
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds that a step may be expected to take")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "ranks", help="folder for the results")
    asked = parser.parse_args(words)
    rank_counts = [1 << power for power in range(1, asked.most.bit_length())]
    found = dict(count_all(asked.most, asked.limit_s))
    asked.out.mkdir(parents=True, exist_ok=True)
    draw(found, rank_counts, asked.out / "ranks.png")
    titles = (*TITLES, "growth", "of the model", "of who sends most", "")
    auto = ("ranks", "dense, ms", 'auto("near")', "ms", 'auto("any")', "ms")
    rows = [cells(key, own) for key, own in found.items()]
    tables = [told(), table(titles, rows, words=3), table(auto, map(choice, rank_counts))]
    (asked.out / "tables.md").write_text("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
