"""Gradient compression for Horovod and PyTorch. Importing this package imports neither, and patches nothing."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__", "patch_horovod"]


def patch_horovod() -> None:
    """Give `horovod.torch` itself the compressing optimizer, for code that must keep `import horovod.torch as hvd`."""
    from hvd_compress.torch.patch import patch_horovod as patch

    patch()
