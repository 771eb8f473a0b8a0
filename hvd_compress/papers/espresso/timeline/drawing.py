"""Timelines as pictures, like Figure 2 of the Espresso paper: a row for each resource, a box for each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_compress.cli.outputs import new_figure, save_figure
from hvd_compress.extras import needed
from hvd_compress.papers.espresso.timeline.boxes import ROWS, Box

PICTURE = "the picture of a plan"
"""What needs matplotlib, in an error."""
LEGEND = 180
"""Characters of a row of the legend, on a figure of the usual width."""
FEW = 20
"""Tensors up to this number have a colour of their own; more of them have colours by their order."""
CHARACTER = 0.0055
"""Of the width of a picture: a character in a box. What has no room is left out."""
INCHES = 16


@dataclass(frozen=True)
class Panel:
    """One timeline.

    Attributes:
        title: what it is.
        boxes: its tasks.
        end_ns: where it ends, such as F; marked by a line.
        end: what that is called.
    """

    title: str
    boxes: Sequence[Box]
    end_ns: int
    end: str = "F"

    @property
    def rows(self) -> list[str]:
        """From top to bottom: those of ROWS in their order, then others as they come."""
        used = dict.fromkeys(box.row for box in self.boxes)
        return [row for row in ROWS if row in used] + [row for row in used if row not in ROWS]


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write a picture of timelines above each other on one time axis; the suffix of `path` says which kind.

    Boxes are coloured by tensor, the same in all panels, and bear its number where they are wide enough.

    Raises ConfigError where `path` cannot be written, MissingPackageError where matplotlib is missing.
    """
    with needed("matplotlib", PICTURE):
        import matplotlib
    names = {box.tensor: box.name for panel in panels for box in panel.boxes if box.tensor >= 0}
    colors = _Colors(matplotlib.colormaps, names)
    heights = [len(panel.rows) for panel in panels]
    figure = new_figure(PICTURE, figsize=(INCHES, 1.6 + 0.75 * sum(heights) + 0.6 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    until_ms = max(panel.end_ns for panel in panels) / 1e6
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel, colors, until_ms)
    axes[-1].set_xlabel("ms")
    colors.explain(figure, axes)
    save_figure(figure, path, dpi=130)


def _draw_panel(axis: Any, panel: Panel, colors: _Colors, until_ms: float) -> None:
    rows = panel.rows
    for box in panel.boxes:
        place, start, length = rows.index(box.row), box.start_ns / 1e6, box.ns / 1e6
        color, dark = colors.of(box.tensor)
        words = _words(box, length / until_ms)
        edge = {"edgecolor": "white", "linewidth": 0.6 if words else 0.15}
        axis.broken_barh([(start, length)], (place - 0.4, 0.8), facecolor=color, **edge)
        ink = {"color": "white" if dark else "black", "fontsize": 8}
        axis.text(start + length / 2, place, words, ha="center", va="center", **ink)
    end = panel.end_ns / 1e6
    axis.axvline(end, color="crimson", linewidth=1.2)
    axis.set_title(f"{panel.end} = {end:.3f} ms", loc="right", color="crimson")
    axis.set_xlim(0, 1.01 * until_ms)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_title(panel.title, loc="left")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _words(box: Box, width: float) -> str:
    """Return what fits into a box: tensor and task, or the tensor, or nothing."""
    task = box.task.partition("@")[0]
    choices = [task] if box.tensor < 0 else [f"{box.tensor} {task}", str(box.tensor)]
    return next((words for words in choices if (len(words) + 1) * CHARACTER < width), "")


class _Colors:
    """Of tensors, and what explains them: a legend of a few names, or a bar of many numbers."""

    def __init__(self, maps: Any, names: dict[int, str]) -> None:
        self._names, self._few = names, len(names) <= FEW
        self._map = maps[("tab10" if len(names) <= 10 else "tab20") if self._few else "viridis"]
        self._most = max(names, default=0)
        self._order = {tensor: number for number, tensor in enumerate(sorted(names))}

    def of(self, tensor: int) -> tuple[Any, bool]:
        """Return the colour of a tensor, and whether it is dark."""
        if tensor < 0:
            return "0.8", False
        color = self._map(self._order[tensor] if self._few else tensor / max(1, self._most))
        red, green, blue = color[:3]
        return color, 0.3 * red + 0.59 * green + 0.11 * blue < 0.5

    def explain(self, figure: Any, axes: Any) -> None:
        with needed("matplotlib", PICTURE):
            from matplotlib.cm import ScalarMappable
            from matplotlib.colors import Normalize
            from matplotlib.patches import Patch
        if self._few:
            patches = [
                Patch(color=self.of(n)[0], label=f"{n}: {_short(name)}") for n, name in sorted(self._names.items())
            ]
            longest = max((len(str(patch.get_label())) for patch in patches), default=1)
            columns = max(1, min(5, LEGEND // longest, len(patches)))
            figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False)
        else:
            bar = ScalarMappable(Normalize(0, self._most), self._map)
            figure.colorbar(bar, ax=list(axes), label="tensor or bucket, in backward order", pad=0.01, fraction=0.02)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:18]}...{name[-19:]}"
