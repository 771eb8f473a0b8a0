"""The cache of a request under clustered attention, by transformers' interface."""

from __future__ import annotations

from typing import Any

from hvd_compress.attention.counts import ClusterCounts
from hvd_compress.attention.layer import ClusteredLayer
from hvd_compress.attention.rows import BLOCK_TOKENS
from hvd_compress.attention.transformers_api import Cache
from hvd_compress.checks import check_whole
from hvd_compress.errors import UnsupportedError


class ClusteredCache(Cache):  # type: ignore[misc]  # transformers is not typed here
    """Keys and values, of which the redundant keys are dropped as soon as each sequence of the batch has five real
    tokens.

    `model.generate` makes one by itself after apply(model, counts). Pass one where tokens are added in several calls,
    to the model that the counts were applied to.

    Bytes: for H heads with keys of their own, sum over L layers of (k + H) / (2 L H) of those of a full cache of as
    many tokens, which are rounded up to `block_tokens`. Under grouped-query attention H is the number of heads of keys,
    and k that of those which representatives use, the mean over sequences.

    Args:
        counts: of the model.
        static: sequences take the clusters of the counts (CHAI-static), not those of their first tokens.
        block_tokens: storage grows by so many tokens at a time.

    Raises:
        ConfigError: block_tokens is less than 1.
    """

    def __init__(self, counts: ClusterCounts, *, static: bool = False, block_tokens: int = BLOCK_TOKENS):
        check_whole("block_tokens", block_tokens, 1)
        self.counts, self.static = counts, static
        self.attends_alone = False  # the model does not fill it: attention does, for one call
        super().__init__(
            layers=[
                ClusteredLayer(each.clusters, each.membership if static else None, block_tokens)
                for each in counts.layers
            ]
        )

    @property
    def storage_bytes(self) -> int:
        """Bytes of all storages of keys and values, counted from them, with the room for the rest of a block."""
        return sum(layer.storage_bytes for layer in self.layers)

    @property
    def batch_size(self) -> int:
        """Sequences of the batch, or -1 before the first token."""
        return self.layers[0].batch or -1

    def early_initialization(self, *_: Any, **__: Any) -> None:
        """Refused."""
        raise UnsupportedError("a clustered cache takes its shapes from the first tokens: do not initialise it before")
