"""What a clustered cache keeps of one layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.attention.decoding import decode_plan, decodes, together
from hvd_compress.attention.first_tokens import FIRST, FirstTokens
from hvd_compress.attention.kernels import DecodePlan, DecodeRows, append_token
from hvd_compress.attention.layout import Layout, clustered_layout, whole_layout
from hvd_compress.attention.rows import Rows
from hvd_compress.attention.transformers_api import CacheLayerMixin
from hvd_compress.errors import UnsupportedError


class ClusteredLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed here
    """Keys and values of one layer: all of them until each sequence of the batch has five real tokens, then the keys of
    representatives alone, and all values. `attend` (attend.py) tells when that is, as it sees the queries.

    `keys` and `values` of transformers' own layers are None: rows lie in another order here.

    Args:
        clusters: k.
        fixed: for each head its representative, which every sequence takes (CHAI-static); None: by its first tokens.
        block_tokens: by how many tokens storage grows.

    Attributes:
        first: the first tokens; None until there are any tokens.
        source: int64 (batch, heads): representatives of the sequences whose clusters are known.
        known: bool (batch,): which these are.
        clustered: whether redundant keys are dropped. Then all are known.
        layout: which rows lie where.
        query_heads, kept_key_heads: whose queries and keys some sequence needs, ascending; once it is clustered.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, clusters: int, fixed: Sequence[int] | None, block_tokens: int):
        super().__init__()
        self.clusters = clusters
        self._fixed = None if fixed is None else tuple(fixed)
        self._block = block_tokens
        self.reset()

    def reset(self) -> None:
        """Forget all tokens."""
        self.is_initialized = False
        self.clustered = False
        self.rows: tuple[Rows, Rows] | None = None
        self.first: FirstTokens | None = None
        self.source = torch.empty(0)
        self.known = torch.empty(0)
        self.batch, self.key_heads = 0, 0
        self._decode_rows: DecodeRows | None = None
        self._lay_out(Layout((), (), (), ()))

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take the shape and the device of the first keys, (batch, key_heads, tokens, head_dim)."""
        self.batch, self.key_heads = key_states.shape[:2]
        self.device = key_states.device
        self.known = torch.zeros(self.batch, dtype=torch.bool, device=self.device)
        self._lay_out(whole_layout(self.batch, self.key_heads))
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Add tokens (batch, key_heads, tokens, head_dim), of keys those that are kept.

        Returns:
            keys and values of all tokens, as whole() does. Once they are clustered, what was given: attend() takes what
            is kept from here.

        Raises:
            UnsupportedError: the tokens are of another number of sequences or dtype. Nothing is added then.
        """
        if torch.is_inference_mode_enabled():  # whose tensors could not be written to outside of it
            with torch.inference_mode(False), torch.no_grad():
                return self.update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.rows is not None:
            self._require_alike(key_states, value_states)
        if self.clustered and decodes(key_states, value_states) and self._append_token(key_states, value_states):
            return key_states, value_states
        self._decode_rows = None
        keys, values = key_states.flatten(0, 1), value_states.flatten(0, 1)
        if self.clustered:
            keys, values = keys[self._key_index], values[self._value_index]
        if self.rows is None:
            self.rows = Rows(keys, self._block), Rows(values, self._block)
        else:
            self.rows[0].append(keys)
            self.rows[1].append(values)
        return (key_states, value_states) if self.clustered else self.whole()

    def _require_alike(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        assert self.rows is not None
        if key_states.shape[:2] != (self.batch, self.key_heads):
            raise UnsupportedError(
                f"this ClusteredCache has {self.batch} sequences of {self.key_heads} heads of keys, and the call has "
                f"{key_states.shape[0]} of {key_states.shape[1]}: reset() it, or repeat or select its sequences"
            )
        dtypes = self.rows[0].store.dtype, self.rows[1].store.dtype
        if (key_states.dtype, value_states.dtype) != dtypes and not torch.is_autocast_enabled(key_states.device.type):
            raise UnsupportedError(
                f"this ClusteredCache has keys and values of {dtypes[0]} and {dtypes[1]}, and the call has "
                f"{key_states.dtype} and {value_states.dtype}: go on as it was filled, within torch.autocast or not"
            )

    def _append_token(self, key_states: torch.Tensor, value_states: torch.Tensor) -> bool:
        """Add a token by the kernel, if it is of the dtype of those that are there."""
        assert self.rows is not None
        keys, values = self.rows
        if keys.store.dtype != key_states.dtype or values.store.dtype != key_states.dtype:
            return False
        at = keys.tokens
        if at == keys.store.shape[1]:
            self._decode_rows = None  # which would keep the storage that is left
            keys.reserve(at + 1)
            values.reserve(at + 1)
        append_token(together(key_states), together(value_states), self.decode_rows(), at)
        keys.tokens = values.tokens = at + 1
        return True

    def decode_rows(self) -> DecodeRows:
        """Return what is kept, clustered, as the kernel takes it."""
        assert self.rows is not None
        if self._decode_rows is None:
            self._decode_rows = DecodeRows(
                self.rows[0].store, self.rows[1].store, self._key_index, self._value_index, self._decode_plan
            )
        return self._decode_rows

    def kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (rows, tokens, head_dim), in the order of `layout`."""
        assert self.rows is not None
        return self.rows[0].view, self.rows[1].view

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values (batch, key_heads, tokens, head_dim), while they are there."""
        assert not self.clustered
        keys, values = self.kept()
        shape = (self.batch, self.key_heads, keys.shape[1], -1)
        return keys.view(shape), values.view(shape)

    def find_clusters(self, heads: int) -> None:
        """Find the clusters of sequences whose fifth token has come; where all have, drop the redundant keys."""
        assert self.first is not None
        if not self.source.numel():
            self.source = torch.arange(heads, device=self.device).expand(self.batch, heads).clone()
        ready = ((self.first.count >= FIRST) & ~self.known).nonzero().flatten()
        if ready.numel():
            if self._fixed is None:
                self.source[ready] = self.first.source(ready, self.clusters)
            else:
                self.source[ready] = torch.tensor(self._fixed, device=self.device)
            self.known[ready] = True
        if bool(self.known.all()):
            self.clustered = True
            self._keep(range(self.batch))

    def take(self, sequences: Sequence[int]) -> None:
        """Make these sequences of the batch the batch, one of them several times or not at all."""
        if not self.is_initialized or list(sequences) == list(range(self.batch)):
            return
        index = torch.tensor(sequences, dtype=torch.int64, device=self.device)
        self.known = self.known[index]
        self.source = self.source[index] if self.source.numel() else self.source
        if self.first is not None:
            self.first.take(index)
        self._keep(sequences)

    def _keep(self, sequences: Sequence[int]) -> None:
        """Keep the rows of these sequences that the clusters leave, in the order that they need."""
        assert self.rows is not None
        key_place = {row: place for place, row in enumerate(self.layout.key_rows)}
        value_place = {row: place for place, row in enumerate(self.layout.value_rows)}
        self.batch = len(sequences)
        if self.clustered:
            layout = clustered_layout(self.source.tolist(), self.key_heads)
        else:
            layout = whole_layout(self.batch, self.key_heads)

        def old(row: int) -> int:
            return sequences[row // self.key_heads] * self.key_heads + row % self.key_heads

        self.rows[0].select([key_place[old(row)] for row in layout.key_rows])
        self.rows[1].select([value_place[old(row)] for row in layout.value_rows])
        self._lay_out(layout)

    def _lay_out(self, layout: Layout) -> None:
        self.layout = layout
        device = self.device if self.is_initialized else None
        queries = [row for group in layout.groups for row in group.queries]
        self._key_index, self._value_index, self.query_index, self.output_index = (
            torch.tensor(rows, dtype=torch.int64, device=device)
            for rows in (layout.key_rows, layout.value_rows, queries, layout.outputs)
        )
        if layout.groups:
            self.query_heads = _heads(queries, self.source.shape[1])
            self.kept_key_heads = _heads(layout.key_rows, self.key_heads)
        self._decode_plan = decode_plan(layout) if layout.groups else DecodePlan.of((), ())
        self._decode_rows = None
        self.by_sequence = tuple(part for group in layout.groups for part in group.by_sequence())
        self.sequence_index = tuple(torch.tensor(group.sequences, device=device) for group in layout.groups)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the sequences (beams,) of the batch for beam search, with their clusters."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return self.reorder_cache(beam_idx.clone())
        self.take(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        self.take([sequence for sequence in range(self.batch) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these sequences of the batch: their numbers, or a bool for each."""
        self.take(torch.arange(self.batch)[torch.as_tensor(indices).cpu()].tolist())

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from the end; the number is negative or 0, as of transformers' own caches.

        Raises:
            UnsupportedError: the number is positive, or keys that were dropped would be needed again.
        """
        if tokens_to_remove > 0:
            raise UnsupportedError("crop takes the number of tokens to remove as a negative one, such as crop(-3)")
        left = self.get_seq_length() + tokens_to_remove
        if tokens_to_remove == 0 or self.rows is None:
            return
        if left <= 0:
            self.reset()
            return
        if self.first is not None:
            known = self.known & (self.first.positions[:, FIRST - 1] < left)
            if self.clustered and not bool(known.all()):
                raise UnsupportedError(
                    f"a clustered cache cannot be cropped to {left} tokens: keys were dropped when each sequence had "
                    f"{FIRST} real ones; reset() it and pass the tokens again"
                )
            self.known = known
        self._decode_rows = None
        for rows in self.rows:
            rows.crop(left)

    def get_seq_length(self) -> int:
        """Return the number of tokens, padding included."""
        return 0 if self.rows is None else self.rows[0].tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of tokens with so many more, and that of the first one, which is 0."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: it has no maximum."""
        return -1

    @property
    def storage_bytes(self) -> int:
        """Bytes of the storages of keys and values, with the room that they have for more tokens."""
        return sum(rows.storage_bytes for rows in self.rows or ())

    def offload(self) -> None:
        """Refused."""
        raise UnsupportedError("a clustered cache is not offloaded to the CPU: construct it without offloading")

    prefetch = offload


def _heads(rows: Sequence[int], heads: int) -> tuple[int, ...]:
    return tuple(sorted({row % heads for row in rows}))
