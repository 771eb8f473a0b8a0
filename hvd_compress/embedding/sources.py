"""Which ids of a batch are of which embedding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.errors import ConfigError

Key = Hashable | Callable[[Any], Any]
"""What tells ids in a batch: a key or an index of it, or a function of it."""


class Sources:
    """Embeddings, and what tells their ids in a batch; one that several features share has several keys.

    Attributes:
        modules: each once, in the order in which they are named first.
    """

    def __init__(self, embeddings: Mapping[Key, CachedEmbedding]) -> None:
        """Raises ConfigError unless these are embeddings of different names."""
        if not embeddings or not all(isinstance(each, CachedEmbedding) for each in embeddings.values()):
            raise ConfigError(
                "Lookahead needs embeddings: a mapping from what tells the ids in a batch to a CachedEmbedding"
            )
        self.modules = list({id(module): module for module in embeddings.values()}.values())
        self._keys = [[key for key, other in embeddings.items() if other is module] for module in self.modules]
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"embeddings must have different names, not {self.names}")

    @property
    def names(self) -> list[str]:
        return [module.layout.name for module in self.modules]

    def rows(self, batch: Any, at: int, where: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return what CachedEmbedding.flat_rows() does for all ids that a batch has of the embedding `at` a place."""
        tensors: list[torch.Tensor] = []
        rows: list[torch.Tensor] = []
        for key in self._keys[at]:
            found = self.modules[at].flat_rows(key(batch) if callable(key) else batch[key], where)
            tensors += found[0]
            rows += found[1]
        return tensors, rows
