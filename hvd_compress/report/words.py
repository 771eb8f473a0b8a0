"""Compressors of a log, in few words."""

from __future__ import annotations

import re
from collections.abc import Collection

SETTINGS = re.compile(r"(\w+)\((.*)\)")


def distinct(compressors: Collection[str]) -> dict[str, str]:
    """Return for each of several compressors its name with the settings by which those of its name differ.

    Of PowerSGD(rank=4, start_step=0) and PowerSGD(rank=1, start_step=0) that is PowerSGD(rank=4) and PowerSGD(rank=1).
    Text that is no name with settings stays as it is, and so does what nothing else has the name of.
    """
    known = {text: found for text in compressors if (found := SETTINGS.fullmatch(text))}
    words = dict.fromkeys(compressors, "")
    for text in compressors:
        if text not in known:
            words[text] = text
            continue
        name = known[text][1]
        alike = [set(found[2].split(", ")) for found in known.values() if found[1] == name]
        common = set.intersection(*alike) if len(alike) > 1 else set()
        words[text] = f"{name}({', '.join(each for each in known[text][2].split(', ') if each not in common)})"
    return words
