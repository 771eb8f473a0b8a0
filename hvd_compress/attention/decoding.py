"""Attention of one token on the CPU: by a kernel that computes the scores of a representative once."""

from __future__ import annotations

import torch

from hvd_compress.attention.kernels import DecodePlan
from hvd_compress.attention.layout import Layout
from hvd_compress.native.module import FLOATS


def decode_plan(layout: Layout) -> DecodePlan:
    """Return the plan of kernels.decode_attention() for the rows of a layout with groups."""
    asked: list[list[int]] = [[] for _ in layout.key_rows]
    of_place: list[tuple[int, int, int]] = []
    for group in layout.groups:
        for cluster in range(group.clusters):
            key = group.key + cluster
            queries = group.queries[cluster * group.shared : (cluster + 1) * group.shared]
            asked[key] += [query for query in queries if query not in asked[key]]
            for member in range(group.members):
                value = group.value + cluster * group.members + member
                of_place += [(key, query, value) for query in queries]
    pairs = [(key, query) for key, row in enumerate(asked) for query in row]
    scores = {pair: number for number, pair in enumerate(pairs)}
    weighed: list[list[tuple[int, int]]] = [[] for _ in layout.value_rows]
    for output, place in enumerate(layout.outputs):
        key, query, value = of_place[place]
        weighed[value].append((scores[key, query], output))
    return DecodePlan.of(asked, [sorted(row) for row in weighed])


def decodes(states: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the kernels take a token of queries or keys (batch, heads, tokens, head_dim): they know no gradients."""
    return (
        states.is_cpu
        and states.shape[2] == 1
        and states.dtype in FLOATS
        and values.dtype == states.dtype
        and not (torch.is_grad_enabled() and (states.requires_grad or values.requires_grad))
    )


def together(states: torch.Tensor) -> torch.Tensor:
    """Return states whose elements along the last dimension lie together."""
    return states if states.stride(-1) == 1 else states.contiguous()
