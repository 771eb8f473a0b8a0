"""Attention of one token of each sequence, where heads share keys and scores (csrc/cpu/attention/), on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from hvd_compress.errors import ConfigError, MismatchError, UnsupportedError
from hvd_compress.native.checks import checked_float, is_negated, written
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


@dataclass(frozen=True)
class DecodeRows:
    """Storage of a layer's keys and values, checked once and not to be resized.

    Args:
        keys: (rows, capacity, head_dim) fp32, fp16 or bf16, on the CPU, contiguous.
        values: (rows, capacity, value_dim), the same.
        key_source, value_source: for each row the one, sequence * heads + head, that it takes of new tokens; int64
            (rows,), contiguous.
        plan: of as many rows.

    Attributes:
        workspace_bytes: scratch memory for all tokens of the capacity.

    Raises:
        ConfigError: a tensor of a wrong dtype, shape, layout or device.
        MismatchError: shapes that do not fit each other or the plan.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_source: torch.Tensor
    value_source: torch.Tensor
    plan: DecodePlan
    workspace_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        _check("keys", self.keys, 3, FLOATS)
        _check("values", self.values, 3, (self.keys.dtype,))
        _check("key_source", self.key_source, 1, (torch.int64,))
        _check("value_source", self.value_source, 1, (torch.int64,))
        for name in ("keys", "values"):
            tensor, source = getattr(self, name), getattr(self, f"{name[:-1]}_source")
            if not tensor.is_contiguous():
                raise ConfigError(f"{name} {tuple(tensor.shape)} with strides {tensor.stride()} must be contiguous")
            if source.shape != tensor.shape[:1]:
                raise MismatchError(f"{name} has {tensor.shape[0]} rows, and {source.numel()} sources")
        (key_rows, capacity, _), (value_rows, value_capacity, _) = self.keys.shape, self.values.shape
        if (key_rows, value_rows) != (self.plan.key_rows, self.plan.value_rows) or capacity != value_capacity:
            raise MismatchError(
                f"keys {tuple(self.keys.shape)} and values {tuple(self.values.shape)} do not fit each other, or the "
                f"plan for {self.plan.key_rows} and {self.plan.value_rows} rows"
            )
        sizes = key_rows, value_rows, self.plan.scores, self.plan.outputs, self.keys.shape[2], capacity
        object.__setattr__(self, "workspace_bytes", compiled.decode_attention_workspace_bytes(*sizes))


def decode_attention(
    query: torch.Tensor, rows: DecodeRows, tokens: int, scaling: float, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the outputs (batch, heads, 1, value_dim): softmax(scaling * query keys^T) values, as the plan has it.

    Scores are computed once for all outputs that share them, in fp32; the result is rounded once. Where no token is
    seen, it is 0.

    Args:
        query: (batch, heads, 1, head_dim), of the dtype of keys; elements of a head lie together. The plan has an
            output for each head of each sequence, in this order.
        tokens: how many of the rows' capacity are there.
        scaling: of the products of queries and keys.
        mask: bool (batch, tokens), True where a token is seen; None: all are.

    Raises:
        ConfigError: an argument of a wrong dtype, shape, layout or device.
        MismatchError: shapes that do not fit each other or the plan.
    """
    keys, values, plan = rows.keys, rows.values, rows.plan
    (key_rows, capacity, dim), (value_rows, _, value_dim) = keys.shape, values.shape
    batch, heads = _checked_query(query, rows)
    if not 0 <= tokens <= capacity:
        raise MismatchError(f"tokens = {tokens} lies outside 0..{capacity}, the capacity of the rows")
    mask_pointer, mask_stride = _checked_mask(mask, (batch, tokens))
    out = torch.empty((batch, heads, 1, value_dim), dtype=query.dtype, device="cpu")
    workspace = prepare(rows.workspace_bytes)
    sequence_stride, head_stride, _, _ = query.stride()
    first_bad = compiled.decode_attention(
        plan.index.data_ptr(),
        plan.scores,
        plan.outputs,
        CODES[query.dtype],
        query.data_ptr(),
        plan.outputs,
        heads,
        sequence_stride,
        head_stride,
        keys.data_ptr(),
        key_rows,
        capacity * dim,
        dim,
        values.data_ptr(),
        value_rows,
        capacity * value_dim,
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


def _checked_query(query: torch.Tensor, rows: DecodeRows) -> tuple[int, int]:
    """Return the numbers of sequences and heads."""
    dim, outputs = rows.keys.shape[2], rows.plan.outputs
    _check("query", query, 4, (rows.keys.dtype,))
    batch, heads, queries, query_dim = query.shape
    if queries != 1 or query_dim != dim or batch * heads != outputs:
        raise MismatchError(
            f"query is {tuple(query.shape)}, expected (batch, heads, 1, {dim}) with batch * heads = {outputs}"
        )
    return batch, heads


def _checked_mask(mask: torch.Tensor | None, shape: tuple[int, int]) -> tuple[int, int]:
    """Return its address and the distance of its rows; zeros for None."""
    if mask is None:
        return 0, 0
    _check("mask", mask, 2, (torch.bool,))
    if mask.shape != shape:
        raise MismatchError(f"mask must be of shape {shape}, got {tuple(mask.shape)}")
    return mask.data_ptr(), mask.stride(0)


def append_token(key_states: torch.Tensor, value_states: torch.Tensor, rows: DecodeRows, at: int) -> None:
    """Write token `at` of all rows, from the sources that they have.

    Args:
        key_states: (batch, heads, 1, head_dim), of the dtype of keys; elements of a head lie together.
        value_states: (batch, heads, 1, value_dim), the same.

    Raises:
        ConfigError, MismatchError: as decode_attention() does.
    """
    keys = _token("key_states", key_states, rows.key_source, rows.keys, at)
    values = _token("value_states", value_states, rows.value_source, rows.values, at)
    for name, arguments, source in (("key_states", keys, rows.key_source), ("value_states", values, rows.value_source)):
        first_bad = compiled.copy_tokens(*arguments)
        if first_bad >= 0:
            raise MismatchError(
                f"source {int(source[first_bad])} at position {first_bad} of {source.numel()} lies outside "
                f"0..{arguments[1] - 1}, the rows of {name}"
            )


def _token(name: str, states: torch.Tensor, source: torch.Tensor, store: torch.Tensor, at: int) -> tuple[int, ...]:
    """Return the arguments of the kernel that writes token `at` of a storage."""
    _check(name, states, 4, (store.dtype,))
    count, capacity, dim = store.shape
    batch, heads, tokens, states_dim = states.shape
    if tokens != 1 or states_dim != dim or not 0 <= at < capacity:
        raise MismatchError(f"{name} {tuple(states.shape)} do not fit token {at} of rows {tuple(store.shape)}")
    written(name, store)
    size = store.element_size()
    sequence_stride, head_stride, _, _ = states.stride()
    return (
        states.data_ptr(),
        batch * heads,
        heads,
        sequence_stride * size,
        head_stride * size,
        dim * size,
        source.data_ptr(),
        count,
        store.data_ptr() + at * dim * size,
        capacity * dim * size,
    )


def _check(name: str, tensor: torch.Tensor, dimensions: int, dtypes: tuple[torch.dtype, ...]) -> None:
    """Check a tensor (..., dim) whose elements along the last dimension lie together."""
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise ConfigError(
            f"{name} must be of {' or '.join(map(str, dtypes))}, got {tensor.dtype}; convert it with .to()"
        )
    if not tensor.is_cpu or tensor.layout is not torch.strided or is_negated(tensor):
        _refuse(name, tensor)
    shape = tensor.shape
    if len(shape) != dimensions:
        raise ConfigError(f"{name} must have {dimensions} dimensions, got shape {tuple(shape)}")
    last, size = tensor.numel(), tensor.element_size()
    if not last:
        return
    if not tensor.is_contiguous():
        strides = tensor.stride()
        if strides[-1] != 1 and shape[-1] > 1:
            raise ConfigError(f"{name} {tuple(shape)} with strides {strides} does not lie together; use .contiguous()")
        last = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + last) * size:
        raise ConfigError(f"{name} has no memory behind it: its storage was resized")
    address = tensor.data_ptr()
    if not address:
        raise UnsupportedError(f"{name} only stands for a tensor: call kernels outside of torch.compile and the like")
    if address % size:
        raise ConfigError(f"{name} does not start at a multiple of its element size, {size} bytes")


def _refuse(name: str, tensor: torch.Tensor) -> NoReturn:
    if not tensor.is_cpu:
        raise ConfigError(f"{name} must be on the CPU, got {tensor.device}")
    if tensor.layout is torch.strided:
        raise ConfigError(f"{name} is a view that negates what lies in memory; call .resolve_neg() first")
    raise ConfigError(f"{name} must be a plain tensor of {torch.strided}, got {tensor.layout}; use .contiguous()")
