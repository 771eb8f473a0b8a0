"""Models of known shapes with random weights, and clusters of given sizes: what attention takes needs no training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hvd_compress.attention.counts import ClusterCounts
from hvd_compress.attention.families import Geometry
from hvd_compress.attention.loading import random_model
from hvd_compress.attention.shares import require_share

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257},
    ),
    "llama-1b": (
        "llama",
        {
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    ),
    "llama-7b": (
        "llama",
        {
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
        },
    ),
}
"""Family and settings by name: GPT-2 of 124 M, Llama 3.2 of 1 B, whose heads share keys, and the paper's LLaMA-7B."""


def shaped(name: str, positions: int, dtype: torch.dtype, device: torch.device) -> Any:
    """Return a model of SHAPES with random weights, for sequences of so many tokens."""
    family, settings = SHAPES[name]
    longest = "n_positions" if family == "gpt2" else "max_position_embeddings"
    return random_model(family, dtype=dtype, device=device, **settings, **{longest: positions})


def balanced_counts(shape: Geometry, share: float) -> ClusterCounts:
    """Return clusters of about equal size that leave a share of the cache: the largest one that is not above it.

    Of L layers with G heads of keys, k heads keep theirs in the mean, k = (2 share - 1) G. A cluster has neighbours.

    Raises:
        ConfigError: the share is out of reach, or none.
    """
    require_share(share, shape.key_heads)
    kept = int(shape.layers * shape.key_heads * (2 * share - 1) + 1e-9)
    each, more = divmod(kept, shape.layers)
    sizes = [each + (layer < more) for layer in range(shape.layers)]
    return ClusterCounts.of([_balanced(shape.heads, shape.heads if k == shape.key_heads else k) for k in sizes])


def one_head_a_cluster(shape: Geometry) -> ClusterCounts:
    """Return the clusters that leave all keys."""
    return ClusterCounts.of([range(shape.heads)] * shape.layers)


def weight_bytes(model: Any) -> int:
    """Return the bytes of weights that a decoding step reads: all but those of tables of which it takes a row."""
    head = model.get_output_embeddings()
    tables = [module.weight for module in model.modules() if type(module).__name__ == "Embedding"]
    looked_up = {id(table) for table in tables if head is None or table is not head.weight}
    return _nbytes(parameter for parameter in model.parameters() if id(parameter) not in looked_up)


def _balanced(heads: int, clusters: int) -> list[int]:
    """Return for each head the first one of its cluster."""
    cluster = [head * clusters // heads for head in range(heads)]
    return [cluster.index(each) for each in cluster]


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
