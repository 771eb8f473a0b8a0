"""Where the programs of this folder keep their figures, and how: in build/controller; pages hold the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "build" / "controller"


def save(path: Path, found: Any) -> None:
    """Write figures as JSON, and make the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
