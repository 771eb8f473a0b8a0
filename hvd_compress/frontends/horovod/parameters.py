"""Broadcasting parameters, also where Horovod knows neither their dtype nor their strides nor GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.horovod.broadcasts import broadcast_async_, check_writable, synchronize


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Horovod's broadcast_parameters, also where it fails: other dtypes, strides, GPUs, iterators, and without a name.

    All that broadcast_() takes is taken. Tensors without a name Horovod counts on each rank, and would wait for ever
    where ranks have made different numbers of calls before; here they are counted anew.

    Args:
        params: a model's state_dict(), parameters() or named_parameters(), or a list of such entries: tensors, or pairs
            of a name and a tensor, in the same order on all ranks.
        root_rank: whose values all ranks get.

    Raises:
        ConfigError: `params` holds no such entries, or a name twice, or a tensor that broadcast_() cannot write; before
            anything is communicated.
    """
    handles = [broadcast_async_(tensor, root_rank, name) for name, tensor in _named(params).items()]
    for handle in handles:
        synchronize(handle)


def _named(params: Any) -> dict[str, torch.Tensor]:
    named: dict[str, torch.Tensor] = {}
    for number, entry in enumerate(_entries(params)):
        name, tensor = entry if isinstance(entry, tuple) and len(entry) == 2 else (None, entry)
        name = f"broadcast_parameters.{number}" if name is None else name
        if not isinstance(name, str):
            raise ConfigError(f"broadcast_parameters, entry {number}, has the name {name!r}: names are text, or None")
        if name in named:
            raise ConfigError(f"broadcast_parameters: two entries have the name {name!r}: give each its own")
        named[name] = check_writable(f"broadcast_parameters, entry {name!r},", tensor)
    return named


def _entries(params: Any) -> Iterable[Any]:
    if isinstance(params, Mapping):
        return sorted(params.items(), key=lambda entry: str(entry[0]))
    if isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor, set, frozenset)):
        return params
    raise ConfigError(
        f"broadcast_parameters takes a dict, a list or an iterator, not a {type(params).__name__}: pass "
        "model.state_dict()"
    )
