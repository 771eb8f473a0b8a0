"""The picture: loss against seconds, a panel for each task and network."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.time_to_accuracy.figures import STEPS, Figures, smoothed
from benchmarks.time_to_accuracy.lab import NETWORKS
from benchmarks.time_to_accuracy.methods import LOCAL, METHODS, Method
from benchmarks.time_to_accuracy.tasks import TASKS

MARKERS = ("", "o", "^", "s")


def draw(figures: Figures, path: Path) -> None:
    """Draw the mean loss over seeds against mean seconds; rivals are dashed, local steps dash-dotted."""
    tasks = [task for task in figures.tasks if figures.networks(task)]
    figure = Figure(figsize=(16, 4.2 * len(tasks) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tasks), max(len(figures.networks(t)) for t in tasks), sharey="row", squeeze=False)
    shown: dict[str, Any] = {}
    for row, task in zip(panels, tasks, strict=True):
        for panel, network in zip(row, figures.networks(task), strict=False):  # a task may have fewer
            _panel(panel, figures, task, network, shown)
            panel.set_title(NETWORKS[network].label)
            panel.set_xlabel("seconds of training")
        for panel in row[len(figures.networks(task)) :]:
            panel.set_visible(False)
        row[0].set_ylabel(f"{TASKS[task].label}\nvalidation loss, nats")
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, fontsize=9)
    figure.savefig(path, dpi=80)


def _panel(panel: Any, figures: Figures, task: str, network: str, shown: dict[str, Any]) -> None:
    for method in figures.methods(task, network):
        by_seed = [smoothed(losses) for losses in figures.losses(task, figures.curve(method, network)).values()]
        columns = list(zip(*by_seed, strict=False))  # as far as all seeds went
        step_s = figures.step_s(task, network, method)
        at = [step_s * column[0][0] for column in columns]
        losses = [fmean(loss for _, loss in column) for column in columns]
        (shown[_plain(METHODS[method])],) = panel.plot(at, losses, **_style(METHODS[method]))
    panel.axhline(_goal(figures, task), color="0.75", linewidth=0.8, zorder=0)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(color="0.93")


def _goal(figures: Figures, task: str) -> float:
    """Return dense's mean loss after STEPS steps."""
    return fmean(dict(smoothed(losses))[STEPS] for losses in figures.losses(task, "dense").values())


def _style(method: Method) -> dict[str, Any]:
    rivals = [name for name in METHODS if METHODS[name].is_rival]
    local = [name for name in METHODS if METHODS[name].front_end == LOCAL]
    ours = [name for name in METHODS if name not in rivals and name not in local]
    if method.name in rivals:
        shades = ("#000000", "#777777", "#1f4e9e", "#5f8fd8", "#9ab8e8")
        again, shade = divmod(rivals.index(method.name), len(shades))
        return {"color": shades[shade], "linestyle": ("--", ":", (0, (6, 1, 1, 1)))[again], "linewidth": 1.4}
    if method.name in local:
        shade = colormaps["viridis"](local.index(method.name) / len(local))
        return {"color": shade, "linestyle": "-.", "linewidth": 1.4}
    again, color = divmod(ours.index(method.name), 10)  # a colour comes again with another marker
    return {"color": colormaps["tab10"](color), "linewidth": 1.5, "marker": MARKERS[again], "markersize": 3.5}


def _plain(method: Method) -> str:
    return method.label.replace("`", "")
