"""Events from a log's file: what events/history.py wrote."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hvd_compress.errors import ConfigError
from hvd_compress.events.history import KINDS, Event

USED = ("choice", "window")
"""Kinds that say what a bucket uses."""
MOST = 1e15
"""No number of an event is larger: neither steps nor seconds."""
_FIELDS = {each.name: type(getattr(Event(0, ""), each.name)) for each in fields(Event)}
"""The type of each field of an event."""


def read(path: Path) -> list[Event]:
    """Return the events of a log. Raises ConfigError that names the line for what is not one."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path} ({error}); a log is the file that HVD_COMPRESS_LOG named. Nothing is logged for "
            "Compression.none and Compression.fp16 of hvd_compress.torch, which are Horovod's own"
        ) from None
    events = [_event(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    if not any(event.kind in USED for event in events):
        raise ConfigError(f"{path} holds no choice yet: train for some more steps")
    return events


def _event(line: str, where: str) -> Event:
    try:
        said = json.loads(line)
        if not isinstance(said, Mapping):
            raise ValueError("it is no JSON object")
        for name, value in said.items():
            _check(name, value)
        return Event(**said)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{where}: not an event of a log ({error}); a log is the file that HVD_COMPRESS_LOG named, and a "
            "last line that was cut short may be removed"
        ) from None


def _check(name: str, value: Any) -> None:
    """Raise ValueError where a field of a line is none of an event's."""
    known = _FIELDS.get(name)
    if known is None:
        raise ValueError(f"unknown field {reprlib.repr(name)}")
    if known is dict and isinstance(value, Mapping):
        right = all(isinstance(each, str) and _is_number(figure, float) for each, figure in value.items())
    else:
        right = isinstance(value, str) if known is str else _is_number(value, known)
    if not right:
        raise ValueError(f"{name} is {reprlib.repr(value)}")
    if name == "kind" and value not in KINDS:
        raise ValueError(f"unknown kind {reprlib.repr(value)}")


def _is_number(value: Any, kind: type) -> bool:
    wanted = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    return wanted and abs(value) <= MOST
