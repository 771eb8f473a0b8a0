"""The picture: cumulative distributions of how far policies stay below Upper Bound (the paper's Figure 14)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.planner.cases import Case

LABELS = {"nvlink-100g": "NVLink, 100 Gbit/s", "pcie-25g": "PCIe, 25 Gbit/s"}
SHOWN = {
    "fp32": ("FP32", "0.6", ":"),
    "byteps-compress": ("BytePS-Compress", "tab:orange", "--"),
    "hitopkcomm": ("HiTopKComm", "tab:green", "--"),
    "hipress": ("HiPress", "tab:blue", "--"),
    "espresso": ("Espresso (Algorithms 1 and 2)", "tab:purple", "-"),
}
OURS = ("ours", "tab:red", "-")


def draw(found: Sequence[Case], path: Path, gpus: int = 64) -> None:
    """Draw a panel for each testbed: the share of cases with at most such a gap."""
    testbeds = list(dict.fromkeys(case.testbed for case in found))
    figure = Figure(figsize=(5.2 * len(testbeds), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(testbeds), sharey=True, squeeze=False)[0]
    for panel, testbed in zip(panels, testbeds, strict=True):
        some = [case for case in found if (case.testbed, case.gpus) == (testbed, gpus)]
        for name, style in SHOWN.items():
            _curve(panel, [case.gap(case.ends[name]) for case in some], style)
        _curve(panel, [case.gap(case.ours) for case in some], OURS, width=2.2)
        panel.set(
            title=f"{LABELS.get(testbed, testbed)}, {gpus} GPUs, {len(some)} cases", xlim=(0, 100), ylim=(0, 1.02)
        )
        panel.set_xlabel("throughput below Upper Bound, %")
        panel.axvline(10, color="0.8", linewidth=0.8, zorder=0)
        panel.grid(color="0.93")
    panels[0].set_ylabel("share of cases")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.savefig(path, dpi=100)


def _curve(panel: Any, gaps: Sequence[float], style: tuple[str, str, str], width: float = 1.5) -> None:
    label, color, line = style
    at = [0.0, *(100 * gap for gap in sorted(gaps)), 100.0]
    shares = [number / max(1, len(gaps)) for number in range(len(gaps) + 1)]
    panel.step(at, [*shares, 1.0], where="post", label=label, color=color, linestyle=line, linewidth=width)
