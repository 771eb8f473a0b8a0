"""The sum of what ranks sent, made by the engine or here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload


def sum_of(payloads: Sequence[Payload], name: str, numel: int) -> torch.Tensor:
    """Return the sum of a tensor of all payloads in rank order; a single payload is the sum already.

    Raises:
        PayloadError: a payload has another length than `numel`; it names the rank.
    """
    for rank, payload in enumerate(payloads):
        if payload[name].numel() != numel:
            raise PayloadError(f"payload from rank {rank}: {payload[name].numel()} values instead of {numel}")
    total = payloads[0][name]
    for payload in payloads[1:]:
        total = total + payload[name]
    return total


def headroom(scale: float) -> float:
    """Return what the terms of a sum are multiplied by, so that it does not leave their range where `scale` times the
    sum does not: the largest power of two up to `scale`, and at most 1. But for denormal numbers it rounds nothing.
    """
    return min(1.0, 2.0 ** (math.frexp(scale)[1] - 1))
