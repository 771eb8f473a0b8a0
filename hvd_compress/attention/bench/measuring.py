"""What clustered attention takes beside a model's own: first token, next token and cache, in turns in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, remove
from hvd_compress.attention.bench.models import one_head_a_cluster, weight_bytes
from hvd_compress.attention.families import Geometry, geometry
from hvd_compress.attention.rows import BLOCK_TOKENS
from hvd_compress.attention.transformers_api import CACHE
from hvd_compress.errors import ConfigError
from hvd_compress.measuring import median_with_interval, order, timed

FULL = "full"
"""The model's own attention and cache."""
ALL_KEYS = "all keys (k = H)"
"""The cache of clustered attention, of which no keys are dropped."""
KINDS = 4
"""That are compared."""

FOR_INTERVAL = 6
"""Rounds from which on there is a 95 % interval of the median: the lowest and the highest of n values have it between
them with a probability of 1 - 2^(1 - n)."""

Ratio = tuple[float, float, float]
"""The median of paired ratios, and its 95 % interval; of fewer than FOR_INTERVAL rounds the lowest and the highest."""


@dataclass(frozen=True)
class Kind:
    """A way to attend; without counts it is the model's own."""

    name: str
    counts: ClusterCounts | None = None
    static: bool = False

    @contextmanager
    def applied(self, model: Any) -> Iterator[None]:
        """Within the block the model attends so."""
        if self.counts is None:
            yield
            return
        apply(model, self.counts, static=self.static)
        try:
            yield
        finally:
            remove(model)


@dataclass(frozen=True)
class Figure:
    """What was measured of a kind at a length.

    Attributes:
        kind: its name.
        length: tokens that a step attends to.
        first_s: seconds until the first token behind a prompt of `length` tokens, the median.
        next_s: seconds of the step that has the last one of `length` tokens, the median.
        first_ratio, next_ratio: to those of FULL in the same round.
        next_of_all_keys: that of ALL_KEYS in the same round: what clusters change, without what the cache does.
        cache_bytes: of the storages of keys and values.
        cache_share: of those of FULL.
        step_bytes: that a step cannot but read: weights and cache.
        floor: step_bytes, of those of FULL.
    """

    kind: str
    length: int
    first_s: float
    next_s: float
    first_ratio: Ratio
    next_ratio: Ratio
    next_of_all_keys: Ratio
    cache_bytes: int
    cache_share: float
    step_bytes: int
    floor: float


def is_noise(ratio: Ratio) -> bool:
    """Return whether a ratio cannot be told from 1."""
    return ratio[1] <= 1 <= ratio[2]


def kinds(counts: ClusterCounts, shape: Geometry) -> list[Kind]:
    """Return what is compared: FULL first; then the cache of clustered attention with all keys, which tells what the
    cache alone changes; then clusters by the first tokens, and those of the counts."""
    return [
        Kind(FULL),
        Kind(ALL_KEYS, one_head_a_cluster(shape)),
        Kind("CHAI", counts),
        Kind("CHAI-static", counts, static=True),
    ]


def longest_within(shape: Geometry) -> list[int]:
    """Return the longest length that a model has positions for; none where it has fewer than BLOCK_TOKENS."""
    longest = shape.positions // BLOCK_TOKENS * BLOCK_TOKENS
    return [longest] if longest else []


def require_lengths(lengths: Sequence[int], shape: Geometry) -> None:
    """Raise ConfigError for lengths that cannot be measured."""
    if not lengths:
        raise ConfigError(
            f"{shape.name} has {shape.positions} positions, and the least length is {BLOCK_TOKENS} tokens"
        )
    for length in lengths:
        if length < BLOCK_TOKENS or length % BLOCK_TOKENS:
            raise ConfigError(
                f"a length of {length} tokens is no multiple of {BLOCK_TOKENS}, by which the cache grows: take "
                f"{max(1, length // BLOCK_TOKENS) * BLOCK_TOKENS} or {(length // BLOCK_TOKENS + 1) * BLOCK_TOKENS}"
            )
        if length > shape.positions:
            raise ConfigError(
                f"a length of {length} tokens is more than {shape.name} has positions: {shape.positions}; pass others "
                "by --lengths"
            )


def measure(
    model: Any,
    counts: ClusterCounts,
    lengths: Sequence[int],
    *,
    batch: int = 1,
    prefills: int = 3,
    rounds: int = 15,
    progress: Callable[[str], object] = lambda _: None,
) -> Iterator[Figure]:
    """Yield the figures of each length and kind.

    A prompt of random tokens is passed in one piece, `prefills` times by each kind in turns. Then each kind decodes one
    token in `rounds` rounds, behind one that is not timed; the cache is cropped by the token after each. The copy
    by which storage grows once in BLOCK_TOKENS tokens is not timed.

    Args:
        model: in eval mode, with its own attention.
        counts: of the clusters.
        batch: sequences.
        progress: is told what is measured.

    Raises:
        ConfigError: lengths that are no multiples of BLOCK_TOKENS, or beyond the model's positions.
        PlanError: the counts are of another model.
    """
    shape = geometry(model)
    counts.check(shape.layers, shape.heads, shape.name)
    require_lengths(lengths, shape)
    draw = torch.Generator().manual_seed(0)
    for length in lengths:
        ids = torch.randint(shape.vocabulary, (batch, length), generator=draw).to(shape.decoder.device)
        yield from _Length(model, kinds(counts, shape), ids, progress).figures(prefills, rounds)


class _Length:
    """The kinds at one length, with a cache each."""

    def __init__(self, model: Any, compared: list[Kind], ids: torch.Tensor, progress: Callable[[str], object]):
        self._model, self._kinds, self._ids, self._progress = model, compared, ids, progress
        self._caches: dict[str, Any] = {}

    def figures(self, prefills: int, rounds: int) -> Iterator[Figure]:
        for kind in self._kinds:
            self._prefill(kind, self._ids[:, :BLOCK_TOKENS])  # to warm up
        first = self._in_turns("first token", self._first, prefills)
        cache_bytes = {name: storage_bytes(cache) for name, cache in self._caches.items()}
        for cache in self._caches.values():
            cache.crop(-1)
        following = self._in_turns("next token", self._next, rounds)
        weights = weight_bytes(self._model)
        for kind in self._kinds:
            name = kind.name
            yield Figure(
                kind=name,
                length=self._ids.shape[1],
                first_s=statistics.median(first[name]),
                next_s=statistics.median(following[name]),
                first_ratio=_paired(first, name),
                next_ratio=_paired(following, name),
                next_of_all_keys=_paired(following, name, ALL_KEYS),
                cache_bytes=cache_bytes[name],
                cache_share=cache_bytes[name] / cache_bytes[FULL],
                step_bytes=weights + cache_bytes[name],
                floor=(weights + cache_bytes[name]) / (weights + cache_bytes[FULL]),
            )

    def _in_turns(self, what: str, time: Callable[[Kind], float], rounds: int) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {kind.name: [] for kind in self._kinds}
        for number in range(rounds):
            for place in order(len(self._kinds), number):
                kind = self._kinds[place]
                self._progress(f"{self._ids.shape[1]} tokens, {what}, round {number + 1} of {rounds}: {kind.name}")
                with kind.applied(self._model):
                    taken[kind.name].append(time(kind))
        return taken

    def _first(self, kind: Kind) -> float:
        self._caches.pop(kind.name, None)
        return timed(lambda: self._prefill_applied(kind, self._ids))

    def _next(self, kind: Kind) -> float:
        cache = self._caches[kind.name]
        seconds = 0.0
        for _ in range(2):  # the second one counts
            seconds = timed(lambda: self._call(self._ids[:, -1:], cache))
            cache.crop(-1)
        return seconds

    def _prefill(self, kind: Kind, ids: torch.Tensor) -> None:
        with kind.applied(self._model):
            self._prefill_applied(kind, ids)

    def _prefill_applied(self, kind: Kind, ids: torch.Tensor) -> None:
        cache = None if kind.counts is None else ClusteredCache(kind.counts, static=kind.static)
        self._caches[kind.name] = self._call(ids, cache)

    @torch.no_grad()
    def _call(self, ids: torch.Tensor, cache: Any) -> Any:
        """Return the cache, once the logits of the last token are there."""
        outputs = self._model(ids, use_cache=True, logits_to_keep=1, **{CACHE: cache})
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)
        return outputs[CACHE]


def storage_bytes(cache: Any) -> int:
    """Return the bytes of the storages of keys and values, of a ClusteredCache or of one of transformers' own."""
    if isinstance(cache, ClusteredCache):
        return cache.storage_bytes
    return sum(each.untyped_storage().nbytes() for layer in cache.layers for each in (layer.keys, layer.values))


def _paired(taken: dict[str, list[float]], name: str, other: str = FULL) -> Ratio:
    ratios = [own / base for own, base in zip(taken[name], taken[other], strict=True)]
    if len(ratios) < FOR_INTERVAL:
        return statistics.median(ratios), min(ratios), max(ratios)
    return median_with_interval(ratios)
