"""A picture of a log: what each bucket used, how long it took, and how the network was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hvd_compress.cli.outputs import new_figure, save_figure
from hvd_compress.errors import shortened
from hvd_compress.events.history import Event
from hvd_compress.report.reading import USED
from hvd_compress.report.words import distinct

LONGEST_NAME = 80
"""Characters; longer than the name of any candidate but an option of the planner's tree."""


def draw(events: Sequence[Event], path: Path) -> None:
    """Write a picture of a log (`draw_on`); what kind of picture is said by the name.

    Raises ConfigError where `path` cannot be written, MissingPackageError where matplotlib is missing.
    """
    figure = new_figure("hvd-compress report")
    draw_on(figure, events)
    save_figure(figure, path)


def draw_on(figure: Any, events: Sequence[Event]) -> None:
    """Draw panels over the steps: candidate and seconds (measured and predicted); and where they are known bytes, and
    ratio with gain.

    Args:
        events: at least one says what a bucket uses, as history.read() requires.
    """
    used = [event for event in events if event.kind in USED]
    further = []
    if any(math.isfinite(event.wire_ratio) for event in used):
        further.append((1, partial(_draw_bytes, used=used)))
    ratios = [event for event in events if event.kind == "ratio"]
    if ratios:
        further.append((2, partial(_draw_ratios, ratios=ratios, used=used)))
    heights = (2, 2, *(height for height, _ in further))
    figure.set_size_inches(9, 1.6 * sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    _draw_used(panels[0], panels[1], used)
    for step in sorted({event.step for event in events if event.kind == "network"}):
        for panel in panels:
            panel.axvline(step, color="0.8", linewidth=1, zorder=0)
    for panel, (_, draw_panel) in zip(panels[2:], further, strict=True):
        draw_panel(panel)
    panels[-1].set_xlabel("step")


def _draw_used(ways, times, used: Sequence[Event]) -> None:  # type: ignore[no-untyped-def]
    ways_of = {bucket: _ways(own, used) for bucket, own in _by_bucket(used)}
    names = list(dict.fromkeys(name for found in ways_of.values() for name in found))
    for bucket, own in _by_bucket(used):
        steps = [event.step for event in own]
        color, label = f"C{bucket % 10}", f"bucket {bucket}"
        ways.step(steps, [names.index(name) for name in ways_of[bucket]], where="post", color=color, label=label)
        for kind, style in (("measured", "-"), ("predicted", ":")):
            known = [event for event in own if math.isfinite(getattr(event, f"{kind}_s"))]
            if known:
                taken = [1e3 * getattr(event, f"{kind}_s") for event in known]
                line = {"color": color, "linestyle": style, "marker": ".", "label": f"{label}, {kind}"}
                times.plot([event.step for event in known], taken, **line)
    ways.set_yticks(range(len(names)), [shortened(name, LONGEST_NAME) for name in names], parse_math=False)
    ways.set_title("what is used; grey lines: another network was noticed")
    ways.legend(loc="best")
    times.set_ylabel("ms an exchange")
    measured = [event.measured_s for event in used if math.isfinite(event.measured_s)]
    if measured:
        if max(measured) > 10 * min(measured) > 0:
            times.set_yscale("log")
        times.legend(loc="best")


def _ways(own: Sequence[Event], used: Sequence[Event]) -> list[str]:
    """Return what each event of a bucket used: also the compressor, where a candidate has had several."""
    by_candidate: dict[str, set[str]] = {}
    for event in used:
        if event.compressor:
            by_candidate.setdefault(event.candidate, set()).add(event.compressor)
    found, sent = [], {}
    for event in own:
        if event.compressor:
            sent[event.candidate] = event.compressor
        several = by_candidate.get(event.candidate, set())
        compressor = distinct(several).get(sent.get(event.candidate, ""), "") if len(several) > 1 else ""
        found.append(f"{event.candidate}, {compressor}" if compressor else event.candidate)
    return found


def _by_bucket(events: Sequence[Event]) -> Iterator[tuple[int, list[Event]]]:
    for bucket in sorted({event.bucket for event in events}):
        yield bucket, [event for event in events if event.bucket == bucket]


def _draw_bytes(panel, used: Sequence[Event]) -> None:  # type: ignore[no-untyped-def]
    for bucket, own in _by_bucket([event for event in used if math.isfinite(event.wire_ratio)]):
        sent = [event.wire_ratio for event in own]
        panel.plot([event.step for event in own], sent, color=f"C{bucket % 10}", marker=".", label=f"bucket {bucket}")
    panel.set_ylabel("bytes / dense")
    panel.set_ylim(bottom=0)
    panel.legend(loc="best")


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
    drawn = [value for event in (*ratios, *used) for value in (event.ratio, event.gain) if math.isfinite(value)]
    if drawn and min(drawn) > 0:
        panel.set_yscale("log")
    panel.set_title("ratio sent (1: no compression); gain: expected of the ratio chosen (dotted), sent (dots)")
    panel.legend(loc="best")
