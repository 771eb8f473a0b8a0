"""Every script of the benchmarks can be imported: most of them run by hand, so a broken import would be seen late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPTIONAL = ("torchrec",)
"""Packages that not every installation has; a script that needs another one is broken."""
PROGRAM = f"""
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in {OPTIONAL}:
            raise
"""


def test_every_module_can_be_imported() -> None:
    files = (ROOT / "benchmarks").rglob("*.py")
    modules = sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    assert len(modules) > 50
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
