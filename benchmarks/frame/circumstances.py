"""Under which circumstances a figure was taken."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from images.report import machine

from benchmarks.frame.store import ROOT


def circumstances() -> dict[str, Any]:
    """Return the machine, torch and the commit of a run."""
    return {**machine(), "commit": commit()}


def told() -> str:
    """Return them in one line, which stands above a table."""
    return "{cpu}, {cores} cores, Python {python}, torch {torch}, commit {commit}".format(**circumstances())


def commit(checkout: Path = ROOT) -> str:
    """Return the commit of a checkout; "-dirty" where files differ from it, other than results."""
    found = _git(checkout, "rev-parse", "--short", "HEAD")
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    return (found or "unknown") + ("-dirty" if changed else "")


def _git(checkout: Path, *words: str) -> str:
    """Return what git says; nothing where a checkout has none."""
    done = subprocess.run(["git", "-C", str(checkout), *words], check=False, capture_output=True, text=True)
    return done.stdout.strip()
