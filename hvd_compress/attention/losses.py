"""What clusters cost: the perplexity of samples by clustered attention, beside the model's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from hvd_compress.attention.adapter import apply, remove
from hvd_compress.attention.counts import ClusterCounts

MOST_SAMPLES = 64
"""Of so many samples, spread over all, perplexity is measured."""


@dataclass(frozen=True)
class Perplexities:
    """Of the same samples, a token: exp of the mean cross entropy of all tokens but the first of each.

    Attributes:
        own: by the model's own attention.
        chai: by clusters that the first five tokens of each sample tell.
        static: by the clusters of the counts (CHAI-static).
        samples: of how many.
    """

    own: float
    chai: float
    static: float
    samples: int


def perplexities(model: Any, counts: ClusterCounts, samples: Sequence[Sequence[int]]) -> Perplexities:
    """Measure a model with a head, each sample alone and at once; at most MOST_SAMPLES of them.

    The model is left as it was. Raises as apply() does.
    """
    some = [samples[i * len(samples) // MOST_SAMPLES] for i in range(MOST_SAMPLES)]
    some = some if len(samples) > MOST_SAMPLES else list(samples)
    own = _perplexity(model, some)
    found = []
    for static in (False, True):
        apply(model, counts, static=static)
        try:
            found.append(_perplexity(model, some))
        finally:
            remove(model)
    return Perplexities(own, found[0], found[1], len(some))


def _perplexity(model: Any, samples: Sequence[Sequence[int]]) -> float:
    loss, tokens = 0.0, 0
    with torch.no_grad():
        for sample in samples:
            ids = torch.as_tensor(sample, dtype=torch.int64, device=model.device).unsqueeze(0)
            logits = model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1].float()
            loss += float(cross_entropy(logits, ids[0, 1:], reduction="sum"))
            tokens += ids.numel() - 1
    return math.exp(min(loss / tokens, 700.0))
