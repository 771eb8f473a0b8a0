"""Queries and keys of representatives alone (CHAI, section 6.2.5): which outputs of its projections a layer needs.

A layer that is clustered when a call begins needs the queries of representatives and the keys that these use. The rows
of weights of all other heads are then not read, and their outputs are 0.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from hvd_compress.attention.layer import ClusteredLayer
from hvd_compress.attention.transformers_api import Conv1D

RUN_BYTES = 1 << 16
"""A product of its own for a run of neighbouring outputs takes as long as so many bytes of weights are read."""

_now = threading.local()
"""In a thread: `layer` of the attention that runs in it, if only some projections are needed there."""

Run = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """Neighbouring outputs of a projection.

    Attributes:
        kind: what they are.
        numel: how many.
        head_dim: of each head.
    """

    kind: str
    numel: int
    head_dim: int


class Handles:
    """Takes out of a decoder what narrow() has put in."""

    def __init__(self, handles: Sequence[Any], modules: Sequence[nn.Module]):
        self._handles, self._modules = handles, modules

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for module in self._modules:
            if isinstance(vars(module).get("forward"), _Projected):  # else somebody else has put theirs around it
                del vars(module)["forward"]


def narrow(attention: Any, projections: Sequence[tuple[nn.Module, tuple[Part, ...]]], cache: str) -> Handles:
    """Have the projections of an attention compute what its clustered layer needs, until remove() of what is returned.

    Projections that are no plain layers, such as quantized ones or those of adapters, stay as they are, as do those on
    a GPU, and under autocast. Where little is saved, all is computed.

    Args:
        attention: with `layer_idx`; it is called with a ClusteredCache by the name `cache`, or without.
        projections: linear layers, and what their outputs are.
    """
    plain = [
        (module, parts)
        for module, parts in projections
        if type(module) in (nn.Linear, Conv1D) and "forward" not in vars(module)
    ]
    for module, parts in plain:
        vars(module)["forward"] = _Projected(module, parts)
    handles = [
        attention.register_forward_pre_hook(_Begin(cache), with_kwargs=True),
        attention.register_forward_hook(_end, always_call=True),
    ]
    return Handles(handles, [module for module, _ in plain])


@dataclass(frozen=True)
class _Begin:
    cache: str

    def __call__(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        cache = kwargs.get(self.cache)
        layer = None if cache is None else cache.layers[module.layer_idx]
        _now.layer = layer if layer is not None and layer.clustered else None


def _end(*_: Any) -> None:
    project_all()


def project_all() -> None:
    """Have projections that this thread calls from now on compute all: the attention has what it needs."""
    _now.layer = None


@dataclass(frozen=True)
class _Projected:
    """The forward of a linear layer of which some outputs may not be needed."""

    module: Any
    parts: tuple[Part, ...]

    @_disable_dynamo
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        layer: ClusteredLayer | None = getattr(_now, "layer", None)
        module = self.module
        if layer is not None and x.is_cpu and not torch.is_autocast_enabled("cpu"):
            needed = runs(self.parts, layer.query_heads, layer.kept_key_heads)
            weight = module.weight if type(module) is Conv1D else module.weight.t()  # (inputs, outputs)
            if _saves(needed, weight):
                return _project(x, weight, module.bias, needed)
        whole: torch.Tensor = type(module).forward(module, x)
        return whole


def _saves(needed: tuple[Run, ...], weight: torch.Tensor) -> bool:
    left_out = weight.shape[1] - sum(end - begin for begin, end in needed)
    return left_out * weight.shape[0] * weight.element_size() > len(needed) * RUN_BYTES


def _project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, needed: tuple[Run, ...]) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_zeros(rows.shape[0], weight.shape[1])  # not empty: rotary positions go over all, and meet no NaN
    for begin, end in needed:
        own = weight[:, begin:end]
        out[:, begin:end] = rows @ own if bias is None else torch.addmm(bias[begin:end], rows, own)
    return out.view(*x.shape[:-1], -1)


@lru_cache(maxsize=4096)
def runs(parts: tuple[Part, ...], query_heads: tuple[int, ...], key_heads: tuple[int, ...]) -> tuple[Run, ...]:
    """Return which outputs are needed, as runs of neighbours (begin, end), ascending.

    Args:
        parts: of the outputs, in order.
        query_heads, key_heads: those that are needed; of values all are.
    """
    found: list[Run] = []
    start = 0
    for part in parts:
        heads = {"query": query_heads, "key": key_heads}.get(part.kind, range(part.numel // part.head_dim))
        for head in heads:
            begin = start + head * part.head_dim
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            found.append((begin, start + (head + 1) * part.head_dim))
        start += part.numel
    return tuple(found)
