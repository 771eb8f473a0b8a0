"""Seconds of a step by every path of top-k in 108 cells of network, size and ratio, as they were measured once."""

from __future__ import annotations

from benchmarks.frame.store import RESULTS, read

SECONDS_BY_PATH = ("measured", "predicted")
"""What a cell holds for each path; the file holds it in ms, in the order of its `paths`."""


def read_grid() -> list[dict]:
    """Return the cells, with seconds by path."""
    found = read(RESULTS / "controller-grid.json")
    for cell in found["cells"]:
        for key in SECONDS_BY_PATH:
            by_path = zip(found["paths"], cell.pop(f"{key}_ms"), strict=True)
            cell[key] = {name: ms / 1e3 for name, ms in by_path if ms is not None}
    return found["cells"]
