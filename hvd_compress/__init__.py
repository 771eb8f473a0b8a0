"""Gradient compression for Horovod and PyTorch. Importing this package imports neither, and patches nothing."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_compress import errors as errors
    from hvd_compress import native as native
    from hvd_compress import torch as torch

__version__ = "0.1.0"

__all__ = ["__version__", "patch_horovod"]

_PUBLIC_MODULES = ("errors", "native", "torch")


def __getattr__(name: str) -> ModuleType:
    """Import a public module when it is first named: `hvd_compress.native.topk(...)` needs no import of its own."""
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def patch_horovod() -> None:
    """Give `horovod.torch` itself the compressing optimizer, for code that must keep `import horovod.torch as hvd`."""
    from hvd_compress.front.horovod.patch import patch_horovod as patch

    patch()
