"""A picture of what clustered attention takes, like Figures 6.8 and 6.9: time and memory against length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvd_compress.attention.bench.measuring import ALL_KEYS, FULL, Figure
from hvd_compress.cli.outputs import new_figure, save_figure


def draw(figures: Sequence[Figure], title: str, path: Path) -> None:
    """Write a picture of figures; what kind of picture is said by the name.

    Raises ConfigError where `path` cannot be written, MissingPackageError where matplotlib is missing.
    """
    canvas = new_figure("hvd-compress chai bench --plot", figsize=(13, 4.4))
    canvas.suptitle(title, fontsize=10)
    panels = canvas.subplots(1, 3)
    names = list(dict.fromkeys(figure.kind for figure in figures))
    all_keys = {figure.length: figure for figure in figures if figure.kind == ALL_KEYS}
    for number, name in enumerate(names):
        own = [figure for figure in figures if figure.kind == name]
        lengths = [figure.length for figure in own]
        style = {"color": f"C{number}", "marker": "os^v"[number % 4], "fillstyle": "none", "label": name}
        panels[0].plot(lengths, [1e3 * figure.first_s for figure in own], **style)
        panels[1].plot(lengths, [1e3 * figure.next_s for figure in own], **style)
        panels[2].plot(lengths, [1e-6 * figure.cache_bytes for figure in own], **style)
        if name not in (FULL, ALL_KEYS):
            floor = [1e3 * figure.floor * all_keys[figure.length].next_s for figure in own]
            panels[1].plot(lengths, floor, color=f"C{number}", linestyle=":", label=f"all keys, by the bytes of {name}")
    for axes, words in zip(panels, ("time to first token, ms", "time to next token, ms", "cache, MB"), strict=True):
        axes.set_title(words, fontsize=10)
        axes.set_xlabel("tokens")
        axes.set_ylim(bottom=0)
        axes.set_xticks(list(all_keys), [str(length) for length in all_keys])
        axes.grid(alpha=0.3)
    canvas.legend(*panels[1].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=6)
    save_figure(canvas, path)
