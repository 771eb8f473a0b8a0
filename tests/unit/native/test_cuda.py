"""What the library says is told: which GPUs there are, and that a launch failed."""

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


class Refusing:
    """A library whose functions all return the status 7, and which names the error."""

    def __getattr__(self, name: str) -> object:
        returned = b"cudaErrorInvalidResourceHandle" if name == "hvd_compress_launch_error" else 7
        setattr(self, name, lambda *arguments: returned)
        return getattr(self, name)


def test_a_launch_that_fails_is_told() -> None:
    kernels = cuda.Kernels(Refusing(), torch.device("cpu"), lambda: 0)  # type: ignore[arg-type]
    with pytest.raises(
        RuntimeError, match=r"^topk on cpu: CUDA refused to run a kernel: cudaErrorInvalidResourceHandle$"
    ):
        kernels.topk()
