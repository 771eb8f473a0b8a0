"""What a profile says, and values that nothing has in any place of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.unit.profiler import profile_files

CURVES = [
    {"verb": verb, "algorithm": "auto", "bytes": [1, 1000], "seconds": [1e-5, 2e-5]}
    for verb in ("allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "gather")
]
ABSURD = [10**400, -(10**400), 1e308, 5e-324, -1, float("nan"), float("inf"), True, "1", None, [], {}]


def said() -> dict[str, Any]:
    """Return a profile of two tensors, with curves."""
    found = profile_files.said(shapes={"first": (3, 4), "second": (5,)})
    found["system"]["across"]["curves"] = CURVES
    found["model"]["parameters"] = 17
    found["model"]["steps"] = 3
    found["model"]["tensors"][0]["backward_us_sd"] = 1.0
    return json.loads(json.dumps(found))


def leaves(value: Any, path: tuple[Any, ...] = (), strings: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all numbers, and of `strings`."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key), strings)
    elif strings or not isinstance(value, str):
        yield path


def put(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """Return a copy with another leaf."""
    changed = deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = leaf
    return changed


LEAVES = list(leaves(said()))
