"""A compressor as a file has it: its name and its settings, as plain values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hvd_compress.checks import is_number, is_whole
from hvd_compress.compressors import COMPRESSORS, Compressor
from hvd_compress.errors import UsageError, did_you_mean, known_are

DTYPES = ("float32", "float16", "bfloat16")
_KINDS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": is_whole,
    "float": is_number,
}
"""By the annotation of a setting."""


def compressor_of(settings: Mapping[str, Any]) -> Compressor:
    """Return the compressor of a plan's settings. Raises ValueError that says what is wrong with them."""
    name = settings.get("name")
    if not isinstance(name, str) or name not in COMPRESSORS:
        raise ValueError(f"unknown compressor {name!r}{_meant(name)}")
    known = {field.name: str(field.type) for field in dataclasses.fields(COMPRESSORS[name])}  # type: ignore[arg-type]
    given = {key: value for key, value in settings.items() if key != "name"}
    for key, value in given.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"{name} has no setting {key!r}; it has {has}{did_you_mean(key, known)}")
        if not _KINDS.get(known[key], _any)(value):
            raise ValueError(f"{key} of {name} is {value!r}, which is no {known[key]}")
        if isinstance(value, Mapping):  # a compressor within another
            given[key] = compressor_of(value)
    for field in dataclasses.fields(COMPRESSORS[name]):  # type: ignore[arg-type]
        if field.name not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} needs a setting {field.name}")
    if given.get("dtype") is not None:
        given["dtype"] = _dtype(given["dtype"])
    try:
        return COMPRESSORS[name](**given)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _meant(name: Any) -> str:
    said = settings_called(name) if isinstance(name, str) else None
    return f"; a file says {json.dumps(said)}" if said else known_are(COMPRESSORS, name)


def settings_called(function: str) -> dict[str, Any]:
    """Return what a file says for what a function of `Compression` sends by default; nothing where it has no such."""
    for name, kind in COMPRESSORS.items():
        if function == name or function in kind.functions:
            return {"name": name, **kind.functions.get(function, {})}
    return {}


def _any(_: Any) -> bool:
    return True


def _dtype(word: Any) -> torch.dtype:
    if word not in DTYPES:
        raise ValueError(f"unknown dtype {word!r}{known_are(DTYPES, word)}")
    dtype: torch.dtype = getattr(torch, word)
    return dtype


def name_of(compressor: Compressor) -> str | None:
    """Return the name that plans use for a compressor; None for one of the user's own."""
    return next((name for name, kind in COMPRESSORS.items() if type(compressor) is kind), None)


def settings_of(compressor: Compressor) -> dict[str, Any]:
    """Return the settings that `compressor_of` reads."""
    name = name_of(compressor)
    if name is None:
        raise UsageError(
            f"a plan cannot hold {compressor}: it names {', '.join(COMPRESSORS)}, and no compressor of your own"
        )
    values = {field.name: getattr(compressor, field.name) for field in dataclasses.fields(compressor)}  # type: ignore[arg-type]
    return {"name": name} | {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, Compressor):
        return settings_of(value)
    return dtype_name(value) if isinstance(value, torch.dtype) else value


def dtype_name(dtype: torch.dtype) -> str:
    """Return what a file calls it, such as "float32"."""
    return str(dtype).removeprefix("torch.")
