"""Where the programs of this folder keep their figures, and how.

Raw figures stay in build/controller; pages hold the tables. The grid alone is committed, rounded, to replay choices by.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "build" / "controller"
SECONDS_BY_PATH = ("measured", "predicted")
"""What a cell of the grid holds for each path; a file holds it in ms, in the order of `paths`."""


def save(path: Path, found: Any) -> None:
    """Write figures as JSON, and make the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def save_grid(path: Path, cells: list[dict]) -> None:
    """Write the cells of the grid, one a line, times with five digits, and the name of each path once."""
    paths = sorted({name for cell in cells for key in SECONDS_BY_PATH for name in cell[key]})
    rows = []
    for cell in cells:
        kept = {key: value for key, value in cell.items() if key not in SECONDS_BY_PATH}
        columns = {f"{key}_ms": [_ms(cell[key].get(name)) for name in paths] for key in SECONDS_BY_PATH}
        rows.append(json.dumps({**kept, **columns}, separators=(",", ":")))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"paths": ' + json.dumps(paths) + ',\n"cells": [\n' + ",\n".join(rows) + "\n]}\n")


def read_grid(path: Path) -> list[dict]:
    """Return the cells as `save_grid` was given them, but for the rounding."""
    found = json.loads(path.read_text())
    for cell in found["cells"]:
        for key in SECONDS_BY_PATH:
            by_path = zip(found["paths"], cell.pop(f"{key}_ms"), strict=True)
            cell[key] = {name: ms / 1e3 for name, ms in by_path if ms is not None}
    return found["cells"]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds * 1e3:.5g}")
