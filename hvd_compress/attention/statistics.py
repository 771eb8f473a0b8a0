"""What samples tell about the heads of a layer, in H x H numbers: correlation, and the products that k-means takes."""

from __future__ import annotations

import torch

MOST_SCORES = 1 << 22
"""That are in memory at a time: queries are taken in blocks."""


class HeadStatistics:
    """Of one layer, over samples.

    Attributes:
        products: float64 (heads, heads), the inner products of the heads' scores over all positions of all samples.
        samples: how many there were.
    """

    def __init__(self, heads: int):
        self.products = torch.zeros(heads, heads, dtype=torch.float64)
        self.samples = 0
        self._correlations = torch.zeros(heads, heads, dtype=torch.float64)

    @property
    def correlation(self) -> torch.Tensor:
        """Pearson's, the mean over samples, float64 (heads, heads). That of a head whose scores are constant is 0."""
        correlation = self._correlations / max(self.samples, 1)
        return correlation.fill_diagonal_(1.0)

    def add(self, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        """Add the causal scores of a sample; positions that the mask hides are left out.

        Args:
            query: (heads, tokens, head_dim).
            key: (heads, tokens, head_dim), a head's own.
            scaling: of the products of both, before the softmax.
        """
        heads, tokens, _ = query.shape
        sums, products = torch.zeros(heads, 1, dtype=torch.float64), torch.zeros_like(self.products)
        block = max(1, MOST_SCORES // (heads * tokens))
        for start in range(0, tokens, block):
            scores = (
                causal_scores(query[:, start : start + block], key, scaling, start).flatten(1).to("cpu", torch.float64)
            )
            sums += scores.sum(1, keepdim=True)
            products += scores @ scores.T  # a score that is hidden is 0, and adds nothing
        covariance = products - sums @ sums.T / (tokens * (tokens + 1) / 2)
        deviation = covariance.diagonal().clamp_min(0).sqrt()
        scale = deviation.unsqueeze(0) * deviation.unsqueeze(1)
        flat = deviation <= 1e-9 * products.diagonal().sqrt()
        known = ~(flat.unsqueeze(0) | flat.unsqueeze(1))
        self._correlations += torch.where(known, covariance / scale.masked_fill(~known, 1.0), 0.0)
        self.products += products
        self.samples += 1


def causal_scores(query: torch.Tensor, key: torch.Tensor, scaling: float, start: int) -> torch.Tensor:
    """Return softmax(scaling * query key^T), float32 (heads, queries, tokens), of queries from position `start` on."""
    logits = (query.float() @ key.float().transpose(-2, -1)) * scaling
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(start + 1)
    return logits.masked_fill(hidden, -torch.inf).softmax(-1)
