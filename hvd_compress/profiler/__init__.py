"""What does a training take? Recording the planner's three inputs: model, compressor and system."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_compress.profiler.compressor import measure_compressor as measure_compressor
    from hvd_compress.profiler.profile import Profile as Profile
    from hvd_compress.profiler.system import measure_system as measure_system

_MODULES = {"Profile": "profile", "measure_compressor": "compressor", "measure_system": "system"}

__all__ = ["Profile", "measure_compressor", "measure_system"]


def __getattr__(name: str) -> Any:
    """Import torch when something that needs it is first named: `hvd-compress profile` only needs the folder."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
