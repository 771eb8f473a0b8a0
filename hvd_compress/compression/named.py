"""Compressors by name: those of the functions of `Compression`, and those that plans use."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from hvd_compress import guests
from hvd_compress.compression import Compression
from hvd_compress.compression.choosing import Choosing
from hvd_compress.compressors import COMPRESSORS, Compressor
from hvd_compress.errors import ConfigError, did_you_mean
from hvd_compress.policies.plan_settings import compressor_of, settings_of
from hvd_compress.request.request import Request

NEEDED = {"tau": 1.0}
"""For arguments without a default; how many bits are sent does not depend on them."""
DECIDING = ("levels",)
"""Arguments that are no fields of the compressor, and decide some."""
OTHERS = (*(name for name, each in vars(Choosing).items() if isinstance(each, staticmethod)), *guests.choosing())
"""They choose among compressors or steps, or take one of the user's own."""
OF_HOROVOD = {"fp16": "half", "none": "dense"}
"""Horovod's own, which a front end carries out; and what is the same of this package."""


def names() -> list[str]:
    """Return the functions of `Compression` that name a compressor, in the order in which they are written."""
    parts = [vars(part).items() for part in Compression.__mro__]
    own = [name for part in parts for name, function in part if isinstance(function, staticmethod)]
    return [name for name in (*own, *guests.compressions()) if name not in OTHERS]


def request_of(name: str, given: Mapping[str, Any] = NEEDED, **others: Any) -> Request:
    """Return what a function of `Compression` returns; `given` holds arguments that have no default."""
    function = getattr(Compression, name)
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is inspect.Parameter.empty]
    request: Request = function(**{argument: given[argument] for argument in needed}, **others)
    return request


def compressor_named(text: str) -> Compressor:
    """Return the compressor of a text such as "int4:block=128" or "topk:ratio=0.01,layerwise=true".

    The name is one of COMPRESSORS, and what follows are fields of its dataclass; or it is a function of `Compression`,
    and what follows are those of its arguments that are such fields.

    Raises ConfigError that says what is wrong with it.
    """
    name, _, rest = text.partition(":")
    name = name.strip()
    try:
        given = _settings(rest)
        return compressor_of({"name": name, **given} if name in COMPRESSORS else _settings_by_function(name, given))
    except ValueError as error:
        raise ConfigError(f"{text!r} is no compressor, such as topk:ratio=0.01: {error}") from None


def each_of(text: str) -> list[str]:
    """Return the compressors of a list with commas between, as in "int4,topk:ratio=0.01,layerwise=true,dense"."""
    found: list[str] = []
    for word in text.split(","):
        is_setting = "=" in word and ":" not in word.partition("=")[0]
        if is_setting and found:
            found[-1] += f",{word.strip()}"
        else:
            found.append(word.strip())
    return found


def _settings(text: str) -> dict[str, Any]:
    found = {}
    for word in text.split(",") if text else ():
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word.strip()!r} is no setting, such as ratio=0.01")
        found[key.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    """As JSON has it, or Python: both write numbers alike."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except (ValueError, RecursionError):
        return text


def _settings_by_function(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's settings of what a function of `Compression` names, with some of its arguments given."""
    if name in OTHERS:
        raise ValueError(f"Compression.{name}() is none by itself: it chooses among them, or takes one")
    if name not in names():
        guests.compression(name)  # of one that is not here it says so
        known = list(dict.fromkeys([*names(), *COMPRESSORS]))
        close = f"; did you mean {OF_HOROVOD[name]}?" if name in OF_HOROVOD else did_you_mean(name, known)
        raise ValueError(f"unknown compressor {name!r}" + (close or f"; known are {', '.join(known)}"))
    found = settings_of(request_of(name).compressor)
    may = {*found, *DECIDING}
    known = [argument for argument in inspect.signature(getattr(Compression, name)).parameters if argument in may]
    for key in given:
        if key not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"{name} has no setting {key!r}; it has {has}{did_you_mean(key, known)}")
    fields = {key: value for key, value in given.items() if key not in DECIDING}
    compressor_of({**found, **fields})  # says which value is wrong
    # By the function: a default may follow from another argument.
    others = {key: value for key, value in given.items() if key not in NEEDED}
    return {**settings_of(request_of(name, {**NEEDED, **given}, **others).compressor), **fields}
