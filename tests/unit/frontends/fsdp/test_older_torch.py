"""Where torch has no FSDP2 that takes custom collectives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.fsdp

import hvd_compress.fsdp as hc
from hvd_compress.errors import UnsupportedError


def test_it_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed.fsdp, "FSDPModule", raising=False)
    with pytest.raises(UnsupportedError, match=r"has no FSDP2 with custom collectives.*upgrade torch"):
        hc.compress(torch.nn.Linear(2, 2), hc.Compression.int8())
