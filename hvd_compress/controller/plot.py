"""A picture of a controller's log: what each bucket used, how long it took, and how the network was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hvd_compress.controller.history import Event
from hvd_compress.errors import ConfigError


def draw(events: Sequence[Event], path: Path) -> None:
    """Write a PNG of three panels over the steps: candidate, seconds (measured and predicted), network.

    Raises ConfigError where there is nothing to draw, where matplotlib is missing, and where `path` cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib: pip install 'hvd_compress[report]' ({error})") from None
    used = [event for event in events if event.kind in ("choice", "window")]
    if not used:
        raise ConfigError("the log holds no choice yet: train for some more steps")
    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    ways, times, network = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1))
    names = list(dict.fromkeys(event.candidate for event in used))
    for bucket in sorted({event.bucket for event in used}):
        own = [event for event in used if event.bucket == bucket]
        steps = [event.step for event in own]
        color, label = f"C{bucket % 10}", f"bucket {bucket}"
        ways.step(steps, [names.index(event.candidate) for event in own], where="post", color=color, label=label)
        times.plot(steps, [1e3 * event.measured_s for event in own], color=color, label=f"{label}, measured")
        predicted = [1e3 * event.predicted_s for event in own]
        times.plot(steps, predicted, color=color, linestyle=":", label=f"{label}, predicted")
    for event in events:
        if event.kind == "begin" and event.bucket == 0:
            for panel in (ways, times, network):
                panel.axvline(event.step, color="0.8", linewidth=1, zorder=0)
    ways.set_yticks(range(len(names)), names)
    ways.set_title("what is used; grey lines: a round of trials begins")
    ways.legend(loc="best")
    times.set_ylabel("ms an exchange")
    if max(event.measured_s for event in used) > 10 * min(event.measured_s for event in used) > 0:
        times.set_yscale("log")
    times.legend(loc="best")
    _draw_network(network, events)
    network.set_xlabel("step")
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _draw_network(panel, events: Sequence[Event]) -> None:  # type: ignore[no-untyped-def]
    last = max(event.step for event in events)
    measured = [(0, 1.0, 1.0)]
    measured += [(event.step, event.latency, event.transfer) for event in events if event.kind == "network"]
    measured.append((last, *measured[-1][1:]))
    steps, latency, transfer = zip(*measured, strict=True)
    panel.step(steps, latency, where="post", label="latency")
    panel.step(steps, transfer, where="post", label="transfer")
    if min(*latency, *transfer) > 0:
        panel.set_yscale("log")
    panel.set_ylabel("times calibration")
    panel.legend(loc="best")
    assert all(math.isfinite(value) for value in (*latency, *transfer))
