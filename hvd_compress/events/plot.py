"""A picture of a controller's log: what each bucket used, how long it took, and how the network was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hvd_compress.errors import ConfigError
from hvd_compress.events.history import Event
from hvd_compress.extras import needed


def draw(events: Sequence[Event], path: Path) -> None:
    """Write a PNG of panels over the steps: candidate, seconds (measured and predicted), network; and ratio with gain.

    The last one only where ratios were chosen.

    Raises ConfigError where there is nothing to draw or `path` cannot be written, MissingPackageError where matplotlib
    is missing.
    """
    with needed("matplotlib", "hvd-compress report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    used = [event for event in events if event.kind in ("choice", "window")]
    if not used:
        raise ConfigError("the log holds no choice yet: train for some more steps")
    ratios = [event for event in events if event.kind == "ratio"]
    heights = (2, 2, 1, 2) if ratios else (2, 2, 1)
    figure = Figure(figsize=(9, 1.6 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    ways, times, network = panels[:3]
    names = list(dict.fromkeys(event.candidate for event in used))
    for bucket in sorted({event.bucket for event in used}):
        own = [event for event in used if event.bucket == bucket]
        steps = [event.step for event in own]
        color, label = f"C{bucket % 10}", f"bucket {bucket}"
        ways.step(steps, [names.index(event.candidate) for event in own], where="post", color=color, label=label)
        times.plot(steps, [1e3 * event.measured_s for event in own], color=color, label=f"{label}, measured")
        predicted = [1e3 * event.predicted_s for event in own]
        times.plot(steps, predicted, color=color, linestyle=":", label=f"{label}, predicted")
    for step in sorted({event.step for event in events if event.kind == "begin"}):
        for panel in panels:
            panel.axvline(step, color="0.8", linewidth=1, zorder=0)
    ways.set_yticks(range(len(names)), names)
    ways.set_title("what is used; grey lines: a bucket's round of trials begins")
    ways.legend(loc="best")
    times.set_ylabel("ms an exchange")
    if max(event.measured_s for event in used) > 10 * min(event.measured_s for event in used) > 0:
        times.set_yscale("log")
    times.legend(loc="best")
    _draw_network(network, events)
    if ratios:
        _draw_ratios(panels[3], ratios, used)
    panels[-1].set_xlabel("step")
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None


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


def _draw_ratios(panel, ratios: Sequence[Event], used: Sequence[Event]) -> None:  # type: ignore[no-untyped-def]
    """Ratios as sent; gains as expected of those chosen (lines), and as sent in steps that were looked at (dots)."""
    last = max(event.step for event in used)
    for bucket in sorted({event.bucket for event in ratios}):
        chosen, sent = ([event for event in events if event.bucket == bucket] for events in (ratios, used))
        color, label = f"C{bucket % 10}", f"bucket {bucket}"
        panel.step([e.step for e in sent], [e.ratio for e in sent], where="post", color=color, label=f"{label}, ratio")
        steps, gains = [*(e.step for e in chosen), last], [*(e.gain for e in chosen), chosen[-1].gain]
        panel.step(steps, gains, where="post", color=color, linestyle=":", label=f"{label}, gain")
        seen = [event for event in sent if math.isfinite(event.gain)]
        panel.plot([e.step for e in seen], [e.gain for e in seen], "o", color=color, markersize=3)
    panel.set_yscale("log")
    panel.set_title("ratio sent (1: no compression); gain: expected of the ratio chosen (dotted), sent (dots)")
    panel.legend(loc="best")
