"""Which GPUs there are kernels for, by what the library says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hvd_compress.errors import UnsupportedError
from hvd_compress.native import cuda


@pytest.mark.parametrize(("count", "found"), [(-35, "CUDA error 35"), (0, "0 GPUs"), (1, "1 GPUs")])
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, count: int, found: str) -> None:
    """-35: no driver."""
    monkeypatch.setattr(cuda, "load", lambda: SimpleNamespace(hvd_compress_device_count=lambda: count))
    with pytest.raises(UnsupportedError, match=f"cuda:1 cannot be used: the CUDA runtime reports {found}; install"):
        cuda.kernels(torch.device("cuda", 1))
