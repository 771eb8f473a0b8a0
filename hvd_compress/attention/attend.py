"""Attention where the heads of a cluster share the scores of their representative (CHAI, section 6.2.5).

The queries of a sequence's first five real tokens have the scores of each head itself, always. All later queries have
those of the representatives, over all tokens. So it does not matter in which pieces the tokens come.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from hvd_compress.attention.decoding import decodes, together
from hvd_compress.attention.first_tokens import FirstTokens
from hvd_compress.attention.kernels import decode_attention
from hvd_compress.attention.layer import ClusteredLayer
from hvd_compress.attention.layout import Group


def attend(layer: ClusteredLayer, query: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """Return the outputs (batch, heads, queries, head_dim) of the last tokens that the layer has.

    Finds the clusters of sequences whose fifth token is among them.

    Args:
        layer: with the keys and values of these tokens.
        query: (batch, heads, queries, head_dim).
        mask: bool (batch, 1, queries, tokens), True where a query sees a token; None: causal, and nothing is padded.
        scaling: of the products of queries and keys.
    """
    if torch.is_inference_mode_enabled():  # what the layer keeps is used outside of it, too
        with torch.inference_mode(False), torch.no_grad():
            return attend(layer, query, mask, scaling)
    if layer.clustered:
        return _by_representatives(layer, query, mask, scaling)
    tokens, queries = layer.get_seq_length(), query.shape[2]
    layer.first = layer.first or FirstTokens.none_yet(query.shape[0], query.shape[1], query.device)
    layer.first.see(
        mask[:, 0, -1]
        if mask is not None
        else torch.ones(query.shape[0], tokens, dtype=torch.bool, device=query.device)
    )
    here, exact = layer.first.attend(query, *layer.whole(), scaling)
    layer.find_clusters(query.shape[1])
    if layer.clustered:
        outputs = _by_representatives(layer, query, mask, scaling)
    else:
        outputs = _by_known_representatives(layer, query, mask, scaling)
    sequence, place = here.nonzero(as_tuple=True)
    own = exact[sequence, :, place].to(outputs.dtype)
    outputs[sequence, :, layer.first.positions[sequence, place] - (tokens - queries)] = own
    return outputs


def _by_representatives(
    layer: ClusteredLayer, query: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Rows that lie together are taken together; nothing of the cache is copied."""
    assert layer.rows is not None
    if decodes(query, layer.rows[1].store):
        seen = None if mask is None else together(mask[:, 0, 0])
        return decode_attention(together(query), layer.decode_rows(), layer.get_seq_length(), scaling, seen)
    batch, heads, queries, _ = query.shape
    keys, values = layer.kept()
    asked = query.flatten(0, 1)[layer.query_index]
    causal = _is_causal(mask, queries, keys.shape[1])
    split = mask is not None and batch > 1 and queries > 1  # so that no mask of all queries is copied for each cluster
    outputs, place = [], 0
    for index, group in enumerate(layer.by_sequence if split else layer.layout.groups):
        seen = mask
        if mask is not None and batch > 1:
            seen = mask[group.sequences[0], None] if split else mask[layer.sequence_index[index]]
        rows = asked[place : place + len(group.queries)]
        outputs.append(_attend_group(group, rows, keys, values, seen, causal, scaling))
        place += len(group.queries)
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined[layer.output_index].view(batch, heads, queries, -1)


def _attend_group(
    group: Group,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scaling: float,
) -> torch.Tensor:
    """Return the outputs (clusters * members * n, queries, head_dim); query is (clusters * n, queries, head_dim)."""
    clusters, members, shared = group.clusters, group.members, group.shared
    own_keys = keys[group.key : group.key + clusters].unsqueeze(1)
    own_values = values[group.value : group.value + clusters * members].view(clusters, members, keys.shape[1], -1)
    if query.shape[1] == 1:  # queries of one token that share keys are rows of one product
        asked, wide = query.view(clusters, 1, shared, -1), members
    else:
        asked, wide = query.view(clusters, shared, query.shape[1], -1), members * shared
    outputs = scaled_dot_product_attention(
        asked.expand(-1, wide, -1, -1),
        own_keys.expand(-1, wide, -1, -1),
        own_values.expand(-1, wide, -1, -1),
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
    )
    return outputs.reshape(-1, query.shape[1], values.shape[2])


def _by_known_representatives(
    layer: ClusteredLayer, query: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """While some sequences of a batch are too short: keys and values of the others are copied head by head."""
    keys, values = layer.whole()
    outputs = values.new_zeros(query.shape)  # under autocast their dtype is another one than that of rotated queries
    known = layer.known.nonzero()
    if known.numel():
        source, ratio = layer.source[known[:, 0]], query.shape[1] // keys.shape[1]
        own = torch.arange(query.shape[1], device=query.device)
        found = scaled_dot_product_attention(
            query[known, source],
            keys[known, source // ratio],
            values[known, own // ratio],
            attn_mask=mask if mask is None else mask[known[:, 0]],
            is_causal=_is_causal(mask, query.shape[2], keys.shape[2]),
            scale=scaling,
        )
        outputs[known[:, 0]] = found.to(outputs.dtype)
    return outputs


def _is_causal(mask: torch.Tensor | None, queries: int, tokens: int) -> bool:
    """Return whether SDPA is to be causal by itself, which it counts from the first token on."""
    assert mask is not None or queries in (1, tokens)  # so transformers has it: a later piece of a prompt has a mask
    return mask is None and queries > 1
