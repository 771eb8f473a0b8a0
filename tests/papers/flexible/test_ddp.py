"""What DDP refuses of the controller."""

from __future__ import annotations

import pytest

import hvd_compress.ddp as hc
from hvd_compress.errors import UnsupportedError


def test_rollouts() -> None:
    with pytest.raises(UnsupportedError, match=r"needs hvd_compress.torch's optimizer, as .* use gain='curve'"):
        hc.hook(hc.Compression.flexible(gain="rollout"))
