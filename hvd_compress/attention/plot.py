"""A picture of the offline phase, like Figures 6.3 and 6.5: correlation of heads, and the error against clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_compress.attention.counts import ClusterCounts
from hvd_compress.attention.elbow import errors_left
from hvd_compress.cli.outputs import new_figure, save_figure
from hvd_compress.extras import needed

MOST_MATRICES = 4
"""Layers whose correlation is drawn, from the first to the last."""


def draw(counts: ClusterCounts, path: Path) -> None:
    """Write a picture of what find_clusters() has found; what kind of picture is said by the name.

    Raises ConfigError where `path` cannot be written, MissingPackageError where matplotlib is missing.
    """
    with needed("matplotlib", "hvd-compress chai analyse --plot"):
        import matplotlib
    shown = shown_layers(len(counts.layers))
    figure = new_figure("hvd-compress chai analyse --plot", figsize=(3.0 * MOST_MATRICES, 7.2))
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(3, 4))[:, 0]
    _draw_correlation(parts[0], counts, shown)
    _draw_errors(parts[1].subplots(), counts, matplotlib.colormaps["viridis"])
    save_figure(figure, path)


def shown_layers(layers: int) -> list[int]:
    """Return the layers whose correlation is drawn: evenly from the first to the last."""
    few = min(layers, MOST_MATRICES)
    return [round(place * (layers - 1) / max(1, few - 1)) for place in range(few)]


def _draw_correlation(figure: Any, counts: ClusterCounts, shown: list[int]) -> None:
    """Figure 6.3."""
    figure.suptitle(f"correlation of heads, mean of {counts.samples} samples", fontsize=11)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    lowest = min(0.0, *(r for layer in shown for row in counts.layers[layer].correlation for r in row))
    for axes, layer in zip(panels, shown, strict=True):
        drawn = axes.imshow(counts.layers[layer].correlation, vmin=lowest, vmax=1.0, cmap="viridis")
        axes.set_title(f"layer {layer}", fontsize=10)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("head")
    panels[0].set_ylabel("head")
    figure.colorbar(drawn, ax=panels, label="Pearson's r")


def _draw_errors(axes: Any, counts: ClusterCounts, colors: Any) -> None:
    """Figure 6.5; the elbow of each layer is marked."""
    heads, layers = range(1, counts.heads + 1), len(counts.layers)
    for index, layer in enumerate(counts.layers):
        left, color = errors_left(layer.errors), colors(index / max(1, layers - 1))
        label = f"layer {index}" if layers <= 12 or index in (0, layers - 1) else None
        axes.plot(heads, left, color=color, linewidth=1.2, label=label)
        axes.plot(layer.clusters, left[layer.clusters - 1], marker="o", color=color, markeredgecolor="black")
    if counts.plateau is not None:
        axes.axhline(counts.plateau, color="0.5", linestyle=":", label=f"plateau {counts.plateau:.3g}")
    axes.plot([], [], "o", color="white", markeredgecolor="black", label="clusters of a layer")
    axes.set_xlabel("clusters k")
    axes.set_ylabel("error E(k) / E(1)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
