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

__version__ = "0.1.0"
"""The release, which ranks compare when they meet."""

__all__ = ["__version__", "metrics", "patch_horovod"]

_PUBLIC_MODULES = ("ddp", "errors", "fsdp", "native", "torch")


def __getattr__(name: str) -> ModuleType:
    """Import a public module when it is first named: `hvd_compress.native.topk(...)` needs no import of its own."""
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def patch_horovod() -> None:
    """Give `horovod.torch` itself the compressing optimizer, for code that must keep `import horovod.torch as hvd`."""
    from hvd_compress.front.horovod.patch import patch_horovod as patch

    patch()


def metrics(trained: Any) -> dict[str, float]:
    """Return the figures of the last step of a compressed training, for any logger; empty before the first step.

    "sent_bytes" and "dense_bytes" (mean over ranks, and the same without compression: of a ring allreduce, or of a
    reduce-scatter where FSDP's ranks own shards), "ratio" of the two, "wait_s", "compress_s", "communicate_s",
    "decompress_s" (`StepReport`), "step", "finite" (1 or 0) and "nonfinite_steps"; "relative_error",
    ||corrected - transmitted|| / ||corrected|| on this rank, of compressions with error feedback: it takes two or three
    passes over gradients, and is measured in the step after each call, so the first call has none; and the share of
    elements that travelled in each way, such as "decision/int4 alltoall-allgather". Nothing is communicated.

    Args:
        trained: the optimizer that `DistributedOptimizer()` returned, or the model that `compress()` was called for.

    Raises:
        UsageError: it is not compressed.
    """
    from hvd_compress.front.metrics import metrics as metrics_of

    return metrics_of(trained)
