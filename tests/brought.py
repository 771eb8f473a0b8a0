"""What the tests of guests bring to those of the core, which try all that there is: command lines, cases, uses.

A guest's tests may have a file `brings.py`; without the guest and its tests nothing is missing.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent


def brought(name: str) -> list[Any]:
    """Return what the lists, or the items of the dicts, of this name have in all files."""
    found: list[Any] = []
    for file in sorted(TESTS.rglob("brings.py")):
        module = importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
        said = getattr(module, name, [])
        found += said.items() if isinstance(said, dict) else said
    return found
