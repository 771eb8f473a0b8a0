"""Gradient compression for Horovod and PyTorch. Importing this package imports neither, and patches nothing."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_compress import ddp as ddp
    from hvd_compress import errors as errors
    from hvd_compress import fsdp as fsdp
    from hvd_compress import native as native
    from hvd_compress import torch as torch
    from hvd_compress.frontends.handle import Handle

__version__ = "0.1.0"
"""The release, which ranks compare when they meet."""

__all__ = ["__version__", "of", "patch_horovod"]

_PUBLIC_MODULES = ("ddp", "elastic", "errors", "fsdp", "local", "native", "torch")


def __getattr__(name: str) -> ModuleType:
    """Import a public module when it is first named: `hvd_compress.native.topk(...)` needs no import of its own."""
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "metrics":
        raise AttributeError("hvd_compress.metrics is hvd_compress.of(...).metrics now")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def patch_horovod() -> None:
    """Give `horovod.torch` itself the compressing optimizer, for code that must keep `import horovod.torch as hvd`.

    Call it first. Where Horovod is not installed, such code gets hvd_compress.torch by that name.

    Raises:
        UsageError: HVD_COMPRESS_RUNTIME is "torch", and Horovod is imported already.
    """
    from hvd_compress import torch as drop_in
    from hvd_compress.frontends.horovod.patch import patch_horovod as patch

    patch(drop_in)


def of(trained: Any) -> Handle:
    """Return the handle of a compressed training, which has all that there is to ask of it and to tell it.

    `of(model).last_step`, `of(optimizer).decisions`, `of(model).metrics()`, `of(model).save_plan(path)`.

    Args:
        trained: the optimizer that `DistributedOptimizer()` returned, or the model that `compress()` was called for.

    Raises:
        UsageError: it is not compressed.
    """
    from hvd_compress.frontends.known import of as of_all

    return of_all(trained)
