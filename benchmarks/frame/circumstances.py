"""Under which circumstances a figure was taken."""

from __future__ import annotations

import subprocess
from typing import Any

from images.report import machine

from benchmarks.frame.store import ROOT


def circumstances() -> dict[str, Any]:
    """Return the machine and the commit of a run; "-dirty" where files differ from it, other than results."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    return {**machine(), "commit": _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")}


def _git(*words: str) -> str:
    found = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return found.stdout.strip()
