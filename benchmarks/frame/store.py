"""Where figures are kept until a page is made of them: JSON under build/, one file a run, or a line a round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD, RESULTS = ROOT / "build", ROOT / "benchmarks" / "results"
TRACES = ROOT.parent / "shared" / "data" / "traces"
"""Of models, next to the checkout, where there are any."""


def read(path: Path) -> Any:
    """Return what a file holds; None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def write(path: Path, found: Any) -> None:
    """Write as JSON, at once."""
    write_text(path, json.dumps(found) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write at once, so that an interruption leaves no half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text)
    draft.replace(path)


def append(path: Path, found: Any) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(found) + "\n")


def lines(path: Path) -> list[Any]:
    """Return what each line holds; nothing where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
