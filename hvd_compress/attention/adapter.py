"""Clustered attention in models of transformers: by its attention interface and its caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._compile import _disable_dynamo

from hvd_compress.attention.attend import attend
from hvd_compress.attention.cache import ClusteredCache
from hvd_compress.attention.counts import ClusterCounts
from hvd_compress.attention.families import geometry, projections
from hvd_compress.attention.projections import narrow, project_all
from hvd_compress.attention.transformers_api import CACHE, GenerationMode, register, sdpa_attention_forward
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError

CLUSTERED = "hvd_compress_clustered"
"""The attention implementation, as model.config names it."""
_CACHE = "hvd_compress_cache"
"""The argument by which the cache of a call comes to its attention."""
_APPLIED = "_hvd_compress_attention"
"""The attribute of a model with what remove() needs."""
_MARK = "_hvd_compress_clustered"
"""The attribute of a decoder that says it is applied, by whatever model that has the decoder."""
_GENERATE = "_prepare_cache_for_generation"
_MODES = ("GREEDY_SEARCH", "SAMPLE", "BEAM_SEARCH", "BEAM_SAMPLE")


@dataclass(frozen=True)
class _Applied:
    before: str
    handles: list[Any]


def apply(model: Any, counts: ClusterCounts, static: bool = False) -> None:
    """Have a model attend by clusters of heads, in calls and in generate(), until remove(model).

    The first five real tokens of each sequence are computed exactly, and their scores tell its clusters (CHAI, section
    6.2.3). From then on the keys of representatives alone are kept, and the heads of a cluster share the scores of
    theirs.

    Args:
        model: a GPT-2 or Llama of transformers, in eval mode. Weights are not changed. On the CPU, queries and keys are
            projected of representatives alone in calls at whose beginning the clusters are known.
        counts: of this model, by find_clusters().
        static: all sequences take the clusters found with the samples (CHAI-static).

    Raises:
        ConfigError: the counts are none.
        PlanError: they are of other layers or heads.
        UnsupportedError: the model is of another family, or configured for what clustered attention does not know.
        UsageError: it is applied already.
    """
    if not isinstance(counts, ClusterCounts):
        raise ConfigError(
            f"counts are ClusterCounts, not {type(counts).__name__}: ClusterCounts.load(path) reads a file"
        )
    shape = geometry(model)
    counts.check(shape.layers, shape.heads, shape.name)
    if hasattr(shape.decoder, _MARK):
        raise UsageError(f"clustered attention is applied to this {shape.name} already: remove(model) before")
    before = model.config._attn_implementation
    model.set_attn_implementation(CLUSTERED)  # the one step that may fail
    handles = [
        shape.decoder.register_forward_pre_hook(_Door(counts, static), with_kwargs=True),
        *(narrow(attention, linear, _CACHE) for attention, linear in projections(shape)),
    ]
    if hasattr(model, _GENERATE):
        setattr(model, _GENERATE, _CacheMaker(model, counts, static))
    setattr(model, _APPLIED, _Applied(before, handles))
    setattr(shape.decoder, _MARK, True)


def remove(model: Any) -> None:
    """Give a model its own attention back. Raises UsageError where none is applied."""
    applied: _Applied | None = getattr(model, _APPLIED, None)
    if applied is None:
        raise UsageError(f"no clustered attention is applied to this {type(model).__name__}")
    for handle in applied.handles:
        handle.remove()
    model.set_attn_implementation(applied.before)
    vars(model).pop(_GENERATE, None)
    delattr(model, _APPLIED)
    delattr(geometry(model).decoder, _MARK)


class _Door:
    """Before each call of the decoder: refuses what is not known, and has the call's cache go with it."""

    def __init__(self, counts: ClusterCounts, static: bool):
        self._counts, self._static = counts, static

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        name, config = type(module).__name__, module.config
        if len(args) > 1:
            raise UnsupportedError(f"under clustered attention {name} takes what comes behind input_ids by name")
        mask = kwargs.get("attention_mask")
        for wrong, what in (
            (
                config._attn_implementation != CLUSTERED,
                f"by {config._attn_implementation}, to which the model was set: remove(model), and apply() again",
            ),
            (module.training, "in training mode: model.eval() before, or remove(model)"),
            (kwargs.get("output_attentions"), "with output_attentions: no scores are computed that could be returned"),
            (
                getattr(config, "output_attentions", False),
                "with output_attentions: set it to False in the configuration",
            ),
            (
                mask is not None and (not isinstance(mask, torch.Tensor) or mask.ndim != 2),
                "by a mask other than (batch, tokens)",
            ),
            (
                torch.is_grad_enabled() and _has_gradients(module, args, kwargs),
                "with gradients: call the model within torch.no_grad(), or remove(model)",
            ),
        ):
            if wrong:
                raise UnsupportedError(f"clustered attention does not run {what}")
        kwargs[_CACHE] = self._cache(kwargs, config)
        return args, kwargs

    def _cache(self, kwargs: dict[str, Any], config: Any) -> ClusteredCache:
        """Return the cache of a call; a new one where it has none, which is put among its arguments if it is used."""
        cache = next((kwargs[name] for name in (CACHE, "past_key_values") if kwargs.get(name) is not None), None)
        if cache is None:
            _refuse_packed(kwargs)
            cache = ClusteredCache(self._counts, static=self._static)
            if config.use_cache if kwargs.get("use_cache") is None else kwargs["use_cache"]:
                kwargs[CACHE] = cache
            else:
                cache.attends_alone = True
        elif not isinstance(cache, ClusteredCache):
            raise UnsupportedError(
                f"clustered attention needs a ClusteredCache, not a {type(cache).__name__}: pass "
                "ClusteredCache(counts), or none"
            )
        elif cache.static != self._static or (cache.counts is not self._counts and cache.counts != self._counts):
            raise ConfigError(
                "this ClusteredCache has other counts than those that were applied to the model, or differs in `static`"
            )
        return cache


def _has_gradients(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = (*args, *kwargs.values(), *module.parameters())
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in given)


def _refuse_packed(kwargs: dict[str, Any]) -> None:
    positions = kwargs.get("position_ids")
    if positions is not None and kwargs.get("attention_mask") is None and bool((positions.diff(dim=-1) != 1).any()):
        raise UnsupportedError(
            "clustered attention does not take several sequences packed into one: make a batch of them"
        )


@dataclass(frozen=True)
class _CacheMaker:
    """What generate() calls to prepare its cache."""

    model: Any
    counts: ClusterCounts
    static: bool

    def __call__(self, config: Any, model_kwargs: dict[str, Any], mode: Any, *more: Any) -> None:
        if mode not in [getattr(GenerationMode, each) for each in _MODES] or config.is_assistant:
            asked = "an assistant" if config.is_assistant else mode.value
            raise UnsupportedError(
                f"clustered attention does not generate by {asked}: it knows greedy search, sampling and beam "
                "search; or remove(model)"
            )
        if config.cache_implementation not in (None, "dynamic"):
            raise UnsupportedError(
                f"clustered attention has a cache of its own, which is not {config.cache_implementation}: leave "
                "cache_implementation out"
            )
        if model_kwargs.get(CACHE) is None and config.use_cache is not False:
            model_kwargs[CACHE] = ClusteredCache(self.counts, static=self.static)
        else:
            getattr(type(self.model), _GENERATE)(self.model, config, model_kwargs, mode, *more)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """The attention function of transformers' interface: query (batch, heads, queries, head_dim), key and value as the
    cache has returned them."""
    project_all()
    cache: ClusteredCache | None = kwargs.pop(_CACHE, None)
    if cache is None:  # a model without clusters that shares the configuration
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        return result
    if query.shape[1] != cache.counts.heads:
        raise UnsupportedError(
            f"{query.shape[1]} of {cache.counts.heads} heads are here: clustered attention does not run tensor-parallel"
        )
    layer = cache.layers[module.layer_idx]
    if cache.attends_alone:
        layer.update(key, value)
    return attend(layer, query, mask, kwargs["scaling"]).transpose(1, 2).contiguous(), None


register(CLUSTERED, _disable_dynamo(_attention))  # clusters are found while it runs
