"""Scripts of benchmarks/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(script: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script, named from benchmarks/ on. Until the test ends it can import its neighbours."""
    path = FOLDER / script
    monkeypatch.syspath_prepend(path.parent)
    for name, known in list(sys.modules.items()):  # of other folders, which have modules of the same names
        if FOLDER in Path(getattr(known, "__file__", None) or "").parents:
            monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
