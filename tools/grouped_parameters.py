"""Let `low, high: the bounds.` in a docstring document both parameters: griffe knows one a line.

An extension of griffe, which mkdocs.yml names.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)+)", re.MULTILINE)
_GROUP = re.compile(r"^    (\w+(?:, \*{0,2}\w+)+): (.*\n?(?: {5,}.*\n?)*)", re.MULTILINE)


class GroupedParameters(griffe.Extension):
    """Gives each parameter of a group a copy of their text."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ungrouped(obj.docstring.value)


def ungrouped(docstring: str) -> str:
    """Return a cleaned docstring with an entry for each parameter."""
    return _SECTION.sub(lambda section: _GROUP.sub(_entries, section[0]), docstring)


def _entries(group: re.Match[str]) -> str:
    text = group[2] if group[2].endswith("\n") else f"{group[2]}\n"
    return "".join(f"    {name}: {text}" for name in group[1].split(", "))
