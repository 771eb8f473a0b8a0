"""The offline phase of CHAI (section 6.2.2): how many clusters the heads of each layer form, by samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hvd_compress.attention.counts import ClusterCounts, LayerClusters
from hvd_compress.attention.elbow import PLATEAU, elbow, error_curve, plateau_of_share
from hvd_compress.attention.families import Geometry, geometry
from hvd_compress.attention.kmeans import k_means, squared_distances
from hvd_compress.attention.shares import require_share
from hvd_compress.attention.statistics import HeadStatistics
from hvd_compress.attention.transformers_api import register, sdpa_attention_forward
from hvd_compress.checks import check_number
from hvd_compress.errors import ConfigError, UsageError

RECORDING = "hvd_compress_recording"
"""The attention implementation that is in place while samples are seen: SDPA, which shows queries and keys."""
DIGITS = 6
"""Of errors and correlations in a file."""


def find_clusters(
    model: Any,
    samples: Iterable[Sequence[int] | torch.Tensor],
    *,
    plateau: float | None = None,
    cache_share: float | None = None,
) -> ClusterCounts:
    """Find how many clusters the heads of each layer of a model form (CHAI, Figures 6.3 and 6.5).

    1. The scores of every head over all samples: the softmax of the masked products of queries and keys. Positions that
       the causal mask hides are left out.
    2. E(k), k = 1 .. H: the error of k-means with k clusters, the sum of squared distances of heads to their centre.
    3. The elbow, for each layer: min{k : E(k) / E(1) <= plateau}. It is deterministic.

    Args:
        model: a GPT-2 or Llama of transformers, in eval mode. It is left as it was.
        samples: the token ids of each, one-dimensional, two or more; the paper has 1024 samples. Each is run alone, so
            nothing is padded.
        plateau: from 0, for as many clusters as there are different heads, to 1, for one; 0.05 unless told.
        cache_share: in the place of a plateau, above 0.5 to 1. The plateau is then the smallest one, the same in all
            layers, that leaves at most this share of the cache's bytes: counts.cache_share, where heads have keys of
            their own. Where H heads share the keys of G (grouped queries), which keys a request keeps depends on its
            first tokens; the share is then one that no request exceeds, sum over L layers of (min(k, G) + G) /
            (2 L G), for which layers have fewer than G clusters.

    Raises:
        ConfigError: no samples, one that is no list of token ids, scores that are not finite, `plateau` or
            `cache_share` out of range, or both.
        UnsupportedError: a model of another family.
        UsageError: clustered attention is applied to the model, or it is in training mode.
    """
    if plateau is not None and cache_share is not None:
        raise ConfigError("cache_share says what plateau is to be: give one of them")
    if plateau is not None:
        check_number("plateau", plateau, 0, 1, hint="a share of the error of one cluster")
    shape = geometry(model)
    if cache_share is not None:
        require_share(cache_share, shape.key_heads)
    statistics = [HeadStatistics(shape.heads) for _ in range(shape.layers)]
    tokens = 0
    with torch.no_grad(), _recording(model, shape, statistics) as show:
        for index, sample in enumerate(samples):  # which may call the model, too
            ids = _as_ids(sample, index, shape)
            show(ids)
            tokens += ids.numel()
    if not tokens:
        raise ConfigError("find_clusters needs one sample at least: token ids of text that the model is for")
    for index, each in enumerate(statistics):
        if not bool(each.products.isfinite().all()):
            raise ConfigError(f"layer {index} of {shape.name} has scores that are not finite: look at its weights")
    curves = [error_curve(each.products) for each in statistics]
    if cache_share is not None:
        plateau = plateau_of_share(curves, shape.key_heads, cache_share)
    elif plateau is None:
        plateau = PLATEAU
    return ClusterCounts(
        model=shape.name,
        heads=shape.heads,
        layers=tuple(_layer(each, errors, plateau) for each, errors in zip(statistics, curves, strict=True)),
        samples=statistics[0].samples,
        tokens=tokens,
        plateau=plateau,
    )


def _layer(statistics: HeadStatistics, errors: Sequence[float], plateau: float) -> LayerClusters:
    clusters = elbow(errors, plateau)
    source = k_means(squared_distances(statistics.products).unsqueeze(0), clusters).source[0]
    return LayerClusters(
        clusters=clusters,
        membership=tuple(source.tolist()),
        errors=tuple(float(f"{error:.{DIGITS}g}") for error in errors),
        correlation=tuple(tuple(round(r, DIGITS) for r in row) for row in statistics.correlation.tolist()),
    )


def _as_ids(sample: Sequence[int] | torch.Tensor, index: int, shape: Geometry) -> torch.Tensor:
    try:
        ids = torch.as_tensor(sample)
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0)
    if ids.ndim != 1 or ids.numel() < 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ConfigError(f"sample {index} is not a list of two token ids or more")
    if ids.numel() > shape.positions:
        raise ConfigError(
            f"sample {index} has {ids.numel()} tokens, and {shape.name} has {shape.positions} positions: cut it"
        )
    if not 0 <= int(ids.min()) <= int(ids.max()) < shape.vocabulary:
        raise ConfigError(f"sample {index} has a token that is not among the {shape.vocabulary} of {shape.name}")
    return ids.to(shape.decoder.device, torch.int64).unsqueeze(0)


@contextmanager
def _recording(
    model: Any, shape: Geometry, statistics: list[HeadStatistics]
) -> Iterator[Callable[[torch.Tensor], None]]:
    """Give a function that shows a sample to the model, and adds it to the statistics of its layers."""
    if model.training:
        raise UsageError(
            f"{shape.name} is in training mode, where dropout changes the scores: model.eval() before find_clusters()"
        )
    before = model.config._attn_implementation
    if before.startswith("hvd_compress"):
        raise UsageError(f"clustered attention is applied to this {shape.name}: remove(model) before find_clusters()")
    shown: list[list[HeadStatistics]] = []

    def show(ids: torch.Tensor) -> None:
        shown.append(statistics)
        try:
            shape.decoder(input_ids=ids, use_cache=False)
        finally:
            shown.clear()

    hook = shape.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, RECORDING: shown[0] if shown else None}), with_kwargs=True
    )
    try:
        model.set_attn_implementation(RECORDING)
        yield show
    finally:
        model.set_attn_implementation(before)
        hook.remove()


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    statistics: list[HeadStatistics] | None = kwargs.pop(RECORDING, None)
    if statistics is not None:  # else it is a call of somebody else, or of another model that shares the configuration
        own = key[0].repeat_interleave(query.shape[1] // key.shape[1], 0)
        statistics[module.layer_idx].add(query[0], own, kwargs["scaling"])
    result: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    return result


register(RECORDING, _attention)
