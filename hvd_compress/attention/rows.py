"""Rows of a cache, which grow by tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

BLOCK_TOKENS = 64
"""Rows grow by so many tokens at a time: what is there moves once in so many steps, and not in each."""


class Rows:
    """Rows (rows, tokens, dim) in one storage, which has room for a whole number of blocks of tokens.

    Args:
        first: the tokens to begin with (rows, tokens, dim); copied.
        block_tokens: by how many tokens the storage grows.

    Attributes:
        tokens: how many are there.
        store: (rows, capacity, dim), contiguous.
    """

    def __init__(self, first: torch.Tensor, block_tokens: int):
        self._block = block_tokens
        self.tokens = 0
        self.store = first.new_empty(first.shape[0], 0, first.shape[2])
        self.append(first)

    @property
    def view(self) -> torch.Tensor:
        """What is there (rows, tokens, dim), not copied."""
        return self.store[:, : self.tokens]

    @property
    def storage_bytes(self) -> int:
        return self.store.untyped_storage().nbytes()

    def append(self, new: torch.Tensor) -> None:
        """Add tokens (rows, tokens, dim) behind those that are there."""
        end = self.tokens + new.shape[1]
        self.reserve(end)
        self.store[:, self.tokens : end].copy_(new)
        self.tokens = end

    def reserve(self, tokens: int) -> None:
        """Have room for so many tokens."""
        if tokens > self.store.shape[1]:
            self.store = self._room(self.view, tokens)

    def crop(self, tokens: int) -> None:
        """Keep the first tokens, in a storage of as many blocks as they need."""
        self.tokens = tokens
        if self.store.shape[1] > self._capacity(tokens):
            self.store = self._room(self.view, tokens)

    def select(self, rows: Sequence[int] | torch.Tensor) -> None:
        """Keep these rows, in this order, and release the others."""
        index = torch.as_tensor(rows, device=self.store.device)
        self.store = self.store.index_select(0, index)

    def _capacity(self, tokens: int) -> int:
        return -(-tokens // self._block) * self._block

    def _room(self, kept: torch.Tensor, tokens: int) -> torch.Tensor:
        store = kept.new_empty(kept.shape[0], self._capacity(tokens), kept.shape[2])
        store[:, : kept.shape[1]].copy_(kept)
        return store
