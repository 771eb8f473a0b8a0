"""Tells that a source folder whose kernels were not built hides an installed copy of this package from the program."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
KERNELS = tuple(f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
"""The compiled module, by any name under which this Python would load it."""


def remedy(files: tuple[str, ...], otherwise: str) -> str:
    """Return what to do where this package lacks `files`: `otherwise`, unless an installed copy has one of them."""
    copy = None if _has(PACKAGE, files) else _installed_copy(files)
    if copy is None:
        return otherwise
    return (
        f"the source folder {PACKAGE}, where they were not built, shadows the installed package {copy}: start the "
        "program from another folder, with neither its script nor PYTHONPATH in this one, or build them here, by "
        "`pip install -e .` or `make native`"
    )


def _installed_copy(files: tuple[str, ...]) -> Path | None:
    """Return the folder of the first other copy on sys.path that has one of the files."""
    for entry in sys.path:
        spec = PathFinder.find_spec(PACKAGE.name, [entry])
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            if folder.resolve() != PACKAGE.resolve() and _has(folder, files):
                return folder
    return None


def _has(folder: Path, files: tuple[str, ...]) -> bool:
    return any((folder / name).exists() for name in files)
