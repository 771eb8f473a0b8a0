"""Which compressors may be chosen, and the steps that training needs with each, over those without compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from hvd_compress.compressors import BlockQuantizer, Cast, Compressor

Quality = Literal["dense", "near"]


@dataclass(frozen=True)
class Candidate:
    """What may be chosen.

    Attributes:
        name: as its function of `Compression` is called.
        factor: the steps that training needs, over those without compression.
    """

    name: str
    compressor: Compressor
    factor: float = 1.0


DENSE = Candidate("dense", Cast())
NEAR = (
    DENSE,
    Candidate("bf16", Cast(torch.bfloat16)),
    Candidate("int8", BlockQuantizer(8)),
    Candidate("int4", BlockQuantizer(4)),
)
"""Within 0.02 nats of dense after 240 steps on both tasks of benchmarks/results/time-to-accuracy.md: bf16 -0.001
(images), int8 -0.001 and -0.001, int4 -0.002 and +0.000 (language and images). natural(), +0.006 and -0.001, sends more
bytes than int8 and takes longer to compress."""
OF: dict[Quality, tuple[Candidate, ...]] = {"dense": (DENSE,), "near": NEAR}
