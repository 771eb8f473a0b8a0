"""Warnings that name the line of the program, however deep in this package and in torch they arise."""

from __future__ import annotations

import sys
import warnings

_INNER = (
    "hvd_compress",
    "torch",
    "horovod",
    "contextlib",
    "importlib",
    "accelerate",
    "transformers",
    "lightning",
    "pytorch_lightning",
)


def warn_caller(message: str) -> None:
    """Warn, on behalf of the nearest caller outside of this package and of what calls it, such as torch's wrappers."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (name := frame.f_globals.get("__name__", "").partition(".")[0]) in _INNER:
        frame, level = frame.f_back, level + (name != "importlib")  # whose frames warnings do not count
    warnings.warn(message, stacklevel=level)
