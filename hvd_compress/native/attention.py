"""Attention of one token of each sequence, where heads share keys and scores (csrc/cpu/attention/), on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from hvd_compress.errors import ConfigError, MismatchError, UnsupportedError
from hvd_compress.native.checks import MAX_NUMEL, checked_float
from hvd_compress.native.module import CODES, FLOATS, compiled, memory, prepare


@dataclass(frozen=True)
class DecodePlan:
    """Which query meets which keys, and which scores weigh which values, checked.

    A row of scores is what a query gives with the tokens of a row of keys; an output is what these scores give with a
    row of values.

    Attributes:
        index: int64, the lists of struct AttentionPlan in csrc/include/hvd_compress/attention.hpp.
        key_rows, value_rows, scores, outputs: how many there are.
    """

    index: torch.Tensor
    key_rows: int
    value_rows: int
    scores: int
    outputs: int

    @classmethod
    def of(cls, asked: Sequence[Sequence[int]], weighed: Sequence[Sequence[tuple[int, int]]]) -> DecodePlan:
        """Make a plan.

        Args:
            asked: for each row of keys the queries, sequence * heads + head. Scores are numbered in this order.
            weighed: for each row of values pairs (scores, output), of neighbouring ones those with the same scores;
                the outputs are all numbers from 0 on.

        Raises:
            MismatchError: scores that are not there, or an output that is there twice or not at all.
        """
        queries = [query for row in asked for query in row]
        pairs = [pair for row in weighed for pair in row]
        if sorted(output for _, output in pairs) != list(range(len(pairs))):
            raise MismatchError(f"of {len(pairs)} outputs each must be there once, got {[each[1] for each in pairs]}")
        if not all(0 <= scores < len(queries) for scores, _ in pairs):
            raise MismatchError(f"scores lie outside 0..{len(queries) - 1}: {[each[0] for each in pairs]}")
        index = [*_begins(asked), *queries, *_begins(weighed)]
        index += [scores for scores, _ in pairs] + [output for _, output in pairs]
        return cls(
            torch.tensor(index, dtype=torch.int64, device="cpu"), len(asked), len(weighed), len(queries), len(pairs)
        )


def _begins(rows: Sequence[Sequence[object]]) -> list[int]:
    begins = [0]
    for row in rows:
        begins.append(begins[-1] + len(row))
    return begins


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: DecodePlan,
    scaling: float,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the outputs (batch, heads, 1, value_dim): softmax(scaling * query keys^T) values, as the plan has it.

    Scores are computed once for all outputs that share them, in fp32; the result is rounded once. Where no token is
    seen, it is 0.

    Args:
        query: (batch, heads, 1, head_dim) fp32, fp16 or bf16; elements of a head lie together.
        keys: (rows, tokens, head_dim), of the same dtype; tokens of a row lie together, rows may lie apart.
        values: (rows, tokens, value_dim), the same.
        plan: with an output for each head of each sequence, in the order of queries.
        scaling: of the products of queries and keys.
        mask: bool (batch, tokens), True where a token is seen; None: all are.

    Raises:
        ConfigError: an argument of a wrong dtype, shape, layout or device.
        MismatchError: shapes that do not fit each other or the plan.
    """
    dtype = query.dtype if isinstance(query, torch.Tensor) else None
    for name, tensor, dimensions in (("query", query, 4), ("keys", keys, 3), ("values", values, 3)):
        _check(name, tensor, dimensions, (dtype,) if dtype in FLOATS else FLOATS)
    batch, heads, queries, dim = query.shape
    key_rows, tokens, key_dim = keys.shape
    value_rows, value_tokens, value_dim = values.shape
    if queries != 1 or dim != key_dim or tokens != value_tokens:
        raise MismatchError(
            f"query {tuple(query.shape)}, keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit: "
            "(batch, heads, 1, head_dim), (rows, tokens, head_dim) and (rows, tokens, value_dim), please"
        )
    if (key_rows, value_rows, batch * heads) != (plan.key_rows, plan.value_rows, plan.outputs):
        raise MismatchError(
            f"the plan is for {plan.key_rows} rows of keys, {plan.value_rows} of values and {plan.outputs} queries, "
            f"got {key_rows}, {value_rows} and {batch * heads}"
        )
    mask_pointer, mask_stride = 0, 0
    if mask is not None:
        _check("mask", mask, 2, (torch.bool,))
        if mask.shape != (batch, tokens):
            raise MismatchError(f"mask must be of shape {(batch, tokens)}, got {tuple(mask.shape)}")
        mask_pointer, mask_stride = mask.data_ptr(), mask.stride(0)
    out = torch.empty((batch, heads, 1, value_dim), dtype=dtype, device="cpu")
    sizes = key_rows, value_rows, plan.scores, plan.outputs, dim, tokens
    workspace = prepare(compiled.decode_attention_workspace_bytes(*sizes))
    query_strides = query.stride()
    first_bad = compiled.decode_attention(
        plan.index.data_ptr(),
        plan.scores,
        plan.outputs,
        CODES[query.dtype],
        query.data_ptr(),
        batch * heads,
        heads,
        query_strides[0],
        query_strides[1],
        keys.data_ptr(),
        key_rows,
        keys.stride(0),
        dim,
        values.data_ptr(),
        value_rows,
        values.stride(0),
        value_dim,
        mask_pointer,
        mask_stride,
        tokens,
        checked_float("scaling", scaling),
        out.data_ptr(),
        *memory(workspace),
    )
    if first_bad >= 0:
        raise MismatchError(f"the plan has {int(plan.index[first_bad])} at position {first_bad}, which is not there")
    return out


def _check(name: str, tensor: torch.Tensor, dimensions: int, dtypes: tuple[torch.dtype | None, ...]) -> None:
    """Check a tensor (..., dim) whose last dimension, and that before in rows of tokens, lie together."""
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise ConfigError(
            f"{name} must be of {' or '.join(map(str, dtypes))}, got {tensor.dtype}; convert it with .to()"
        )
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_neg():
        _refuse(name, tensor)
    if tensor.dim() != dimensions:
        raise ConfigError(f"{name} must have {dimensions} dimensions, got shape {tuple(tensor.shape)}")
    if not tensor.numel():
        return
    shape, strides = tensor.shape, tensor.stride()
    if strides[-1] != 1 or (dimensions == 3 and strides[1] != shape[2] and shape[1] > 1):
        raise ConfigError(f"{name} {tuple(shape)} with strides {strides} does not lie together; use .contiguous()")
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    size = tensor.element_size()
    if last > MAX_NUMEL * shape[0] or tensor.untyped_storage().nbytes() < (tensor.storage_offset() + last + 1) * size:
        raise ConfigError(f"{name} has no memory behind it: its storage was resized")
    if not tensor.data_ptr():
        raise UnsupportedError(f"{name} only stands for a tensor: call kernels outside of torch.compile and the like")
    if tensor.data_ptr() % size:
        raise ConfigError(f"{name} does not start at a multiple of its element size, {size} bytes")


def _refuse(name: str, tensor: torch.Tensor) -> NoReturn:
    if not tensor.is_cpu:
        raise ConfigError(f"{name} must be on the CPU, got {tensor.device}")
    raise ConfigError(f"{name} must be a plain tensor of {torch.strided}, got {tensor.layout}; use .contiguous()")
