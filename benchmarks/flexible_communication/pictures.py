"""The pictures of the benchmark: steps under a schedule with what was chosen, and accuracy against time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from figures import Record, accuracy, phases, scaled_s
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

SHADES = ("#eef3fa", "#fdf0e2", "#fbe3e3", "#eef7ea")
"""One for each network, in the order in which they first come."""
PALE = ("C0", "C1", "C2", "C4", "C5", "C6", "C7", "C8", "C9")
"""All but the red, which stands for what is adaptive."""
ADAPTIVE, OTHERS = "#c0202f", ("#555555", "#2b5f9e", "#3c8d4f")


def draw_steps(records: Sequence[Record], path: Path) -> None:
    """Milliseconds a step of some methods, and what the last one, the adaptive, used, over the steps of one seed."""
    adaptive = records[-1]
    steps, schedule = adaptive["steps"], adaptive["schedule"]
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    times, ratios, ways = figure.subplots(3, 1, sharex=True, height_ratios=(5, 2, 4))
    _shade((times, ratios, ways), schedule, steps)
    for record, color in zip(records, (*OTHERS[: len(records) - 1], ADAPTIVE), strict=True):
        full = record["steps"] == steps
        taken = record["step_s"] if full else scaled_s(record, schedule, steps)
        label = record["method"] + ("" if full else " (means of phases)")
        times.plot(range(1, steps), [1e3 * s for s in _smooth(taken)[1:]], color=color, label=label, linewidth=1.3)
    times.set_yscale("log")
    times.set_ylim(top=5 * times.get_ylim()[1])  # room for the legend
    times.set_ylabel("ms a step\n(median of 5)")
    times.legend(loc="upper left", ncols=4, fontsize=8)
    used = [(step, *_split(name)) for step, name in adaptive["used"] if name]
    ends = [*(step for step, *_ in used[1:]), steps]
    names = sorted({way for _, way, _ in used}, key=lambda way: (way.split("-")[0], way))
    for (step, way, ratio), end in zip(used, ends, strict=True):
        ways.plot((step, end), [names.index(way)] * 2, color=ADAPTIVE, linewidth=5, solid_capstyle="butt")
        ratios.plot((step, end), (ratio, ratio), color=ADAPTIVE, linewidth=3, solid_capstyle="butt")
    ratios.set_yscale("log")
    ratios.set_ylim(0.0005, 2)
    ratios.set_ylabel("ratio sent")
    ways.set_yticks(range(len(names)), names, fontsize=8)
    ways.set_ylim(-0.7, len(names) - 0.3)
    ways.set_ylabel("collective")
    ways.set_xlabel("step")
    ways.set_xlim(0, steps)
    figure.suptitle(f"{schedule}, seed {adaptive['seed']}")
    figure.savefig(path, dpi=85)


def draw_accuracy(records: Sequence[Record], schedules: Sequence[str], path: Path) -> None:
    """Accuracy against seconds of training, the mean over seeds, each method under each schedule."""
    steps = max(record["steps"] for record in records)
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(schedules), sharey=True)
    for panel, schedule in zip(panels, schedules, strict=True):
        own = [r for r in records if r["schedule"] == schedule]
        styles = itertools.cycle(("-", "--", ":", "-."))
        for number, method in enumerate(dict.fromkeys(r["method"] for r in own)):
            at, seen = _curve(records, schedule, method, steps)
            auto = method.startswith("adaptive")
            color = ADAPTIVE if auto else PALE[number % len(PALE)]
            panel.plot(at, seen, next(styles), color=color, label=method, linewidth=2.5 if auto else 1.2, marker=".")
        panel.set_xscale("log")
        panel.set_xlabel("seconds of training")
        panel.set_title(schedule)
        panel.grid(color="0.92")
    panels[0].set_ylabel("accuracy, %")
    best = max(accuracy(record) for record in records)
    panels[0].set_ylim(best - 14, best + 1)
    panels[0].legend(loc="lower right", fontsize=8, ncols=2)
    figure.savefig(path, dpi=85)


def _curve(records: Sequence[Record], schedule: str, method: str, steps: int) -> tuple[list[float], list[float]]:
    timed = [r for r in records if (r["schedule"], r["method"]) == (schedule, method)]
    same = "dense" if method == "horovod" else method
    seen = timed if timed[0]["steps"] == steps else [r for r in records if (r["schedule"], r["method"]) == (None, same)]
    step_s = [r["step_s"] if r["steps"] == steps else scaled_s(r, schedule, steps) for r in timed]
    marks = [step for step, _ in seen[0]["accuracies"]]
    at = [fmean(sum(taken[:mark]) for taken in step_s) for mark in marks]
    return at, [100 * fmean(r["accuracies"][i][1] for r in seen) for i in range(len(marks))]


def _shade(panels: Sequence[Any], schedule: str, steps: int) -> None:
    links: dict[str, str] = {}
    for begin, end, link in phases(schedule, steps):
        color = links.setdefault(link, SHADES[len(links) % len(SHADES)])
        for panel in panels:
            panel.axvspan(begin, end, color=color, zorder=0, linewidth=0)
        panels[0].text(
            (begin + end) / 2, 1.02, link, transform=panels[0].get_xaxis_transform(), ha="center", fontsize=9
        )


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    half = width // 2
    return [median(values[max(0, at - half) : at + half + 1]) for at in range(len(values))]


def _split(name: str) -> tuple[str, float]:
    """Collective without its broadcast, and ratio, of what job.way() wrote."""
    way, _, ratio = name.rpartition(" ")
    return way.partition("+")[0], float(ratio)
