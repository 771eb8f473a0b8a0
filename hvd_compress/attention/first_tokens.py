"""The first five real tokens of a request: scores, which tell the clusters (CHAI, Figure 6.6), and exact outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.attention.kmeans import k_means, squared_distances

FIRST = 5
"""Tokens whose scores decide, as in the paper."""


@dataclass
class FirstTokens:
    """Of the sequences of a batch in one layer, as they come.

    Attributes:
        count: real tokens of each sequence so far, int64 (batch,).
        positions: where the first five of them are, int64 (batch, 5); of those that have not come, anything.
        scores: softmax of each of them over those up to itself, float32 (batch, heads, 5, 5).
    """

    count: torch.Tensor
    positions: torch.Tensor
    scores: torch.Tensor

    @classmethod
    def none_yet(cls, batch: int, heads: int, device: torch.device) -> FirstTokens:
        zeros = torch.zeros(batch, FIRST, dtype=torch.int64, device=device)
        return cls(zeros[:, 0].clone(), zeros, torch.zeros(batch, heads, FIRST, FIRST, device=device))

    def see(self, real: torch.Tensor) -> None:
        """Find the positions; real is bool (batch, tokens), False where a token is padding."""
        self.count = real.sum(1)
        order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)[:, :FIRST]
        self.positions = torch.nn.functional.pad(order, (0, FIRST - order.shape[1]))

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Remember the scores of those first tokens that are among the queries, and return what their own heads give.

        Args:
            query: (batch, heads, queries, head_dim), of the last tokens.
            keys, values: (batch, key_heads, tokens, head_dim), of all.

        Returns:
            bool (batch, 5), which of the first tokens are among the queries; and outputs (batch, heads, 5, head_dim).
        """
        heads, started = query.shape[1], keys.shape[2] - query.shape[2]
        known = torch.arange(FIRST, device=query.device) < self.count.unsqueeze(1)
        here = known & (self.positions >= started)
        own_query = _tokens(query, (self.positions - started).clamp_min(0))
        own_keys, own_values = (_per_head(_tokens(each, self.positions), heads) for each in (keys, values))
        logits = own_query.float() @ own_keys.float().transpose(2, 3) * scaling
        hidden = torch.ones(FIRST, FIRST, dtype=torch.bool, device=query.device).triu(1)
        scores = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        self.scores = torch.where(here[:, None, :, None], scores, self.scores)
        return here, (scores.to(own_values.dtype) @ own_values)

    def source(self, rows: torch.Tensor, k: int) -> torch.Tensor:
        """Return the representatives (rows, heads) of sequences whose first tokens have come, by k-means on their
        scores."""
        points = self.scores[rows].flatten(2).to("cpu", torch.float64)
        return k_means(squared_distances(points @ points.mT), k).source.to(self.scores.device)

    def take(self, rows: torch.Tensor) -> None:
        """Make these sequences the batch."""
        self.count, self.positions, self.scores = self.count[rows], self.positions[rows], self.scores[rows]


def _tokens(states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return (batch, heads, 5, dim) of the states (batch, heads, tokens, dim) at positions (batch, 5)."""
    index = positions[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)


def _per_head(states: torch.Tensor, heads: int) -> torch.Tensor:
    return states.repeat_interleave(heads // states.shape[1], 1)
