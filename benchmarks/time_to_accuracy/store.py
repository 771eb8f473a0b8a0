"""Where runs are kept until a page is made of them: build/time_to_accuracy, one file a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from images.report import machine

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "time_to_accuracy"
RESULT = ROOT / "benchmarks" / "results" / "time-to-accuracy"
"""Without its suffix: the page, the picture and the figures."""
BEFORE = BUILD / "before.json"
"""The figures as they were before the first run in this checkout: what other machines have measured counts, too."""


def read(path: Path) -> Any:
    """Return what a file holds; None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def begin() -> None:
    """Keep the figures of earlier machines, before the first run in this checkout."""
    figures = RESULT.with_suffix(".json")
    if not BEFORE.exists() and figures.exists():
        write(BEFORE, read(figures))


def write(path: Path, found: Any) -> None:
    """Write at once, so that an interruption leaves no half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(found) + "\n")
    draft.replace(path)


def circumstances() -> dict[str, Any]:
    """Return the machine and the commit of a run; "-dirty" where files differ from it, other than results."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    return {**machine(), "commit": _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")}


def _git(*words: str) -> str:
    found = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return found.stdout.strip()
