"""Tables of the pages in benchmarks/results, and the cells that most of them have."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from hvd_compress.measuring import median_with_interval


def table(titles: Sequence[str], rows: Iterable[Iterable[object]], words: int = 1) -> str:
    """Return a table in Markdown; its first `words` columns are words, the others figures."""
    return "\n".join([head(titles, words), *map(row, rows)])


def head(titles: Sequence[str], words: int = 1) -> str:
    """Return the first two lines of a table."""
    rule = ["---"] * words + ["---:"] * (len(titles) - words)
    return f"{row(titles)}\n{row(rule)}"


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def ms(seconds: Iterable[float]) -> str:
    """Return the median in milliseconds."""
    return f"{1e3 * statistics.median(seconds):.2f}"


def ratio_cells(ratios: Sequence[float]) -> list[str]:
    """Return two cells for the ratios of all rounds: their median, and its 95 % interval."""
    middle, low, high = median_with_interval(ratios)
    return [f"{middle:.3f}", f"{low:.3f} to {high:.3f}"]


def ratio_cell(ratios: Sequence[float]) -> str:
    """Return one cell with both."""
    return interval_cell(*median_with_interval(ratios))


def interval_cell(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
