"""The items of a part, one after the other in a process of their own, which notes in a file how far it is."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Item = Callable[[], object]
"""Returns what JSON can hold. It raises LeftOutError where it cannot run here; whatever else it raises is a failure."""


class LeftOutError(Exception):
    """What an item needs is not on this machine."""


class FaultyError(Exception):
    """An item has come to its end, and what it found is not as it should be.

    Attributes:
        value: what it found all the same; None without.
    """

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


def work(items: Mapping[str, Item], journal: Path, after: str, require_usable: Callable[[], None]) -> bool:
    """Run items; return whether none has failed.

    Args:
        items: by name, in order.
        journal: file to which a line of JSON is added where an item begins and where it ends.
        after: the last item of an earlier process, after which this one goes on; "" to begin with the first.
        require_usable: called after a failure; raises where the device is lost for this process.
    """
    names = list(items)
    begin = names.index(after) + 1 if after else 0
    _note(journal, items=names)
    good = True
    for name in names[begin:]:
        _note(journal, begin=name)
        begun_s = time.perf_counter()
        outcome = outcome_of(items[name])
        _note(journal, end=name, outcome={"seconds": time.perf_counter() - begun_s, **outcome})
        if "failure" in outcome:
            good = False
            require_usable()
    return good


def outcome_of(item: Item) -> dict[str, object]:
    """Return the value of an item, or in words why it has none. The one place where what items raise is caught."""
    try:
        return {"value": item()}
    except LeftOutError as reason:
        return {"left_out": str(reason)}
    except FaultyError as error:
        value = {} if error.value is None else {"value": error.value}
        return {"failure": str(error), **value}
    except Exception as error:
        traceback.print_exc()
        return {"failure": f"{type(error).__name__}: {error}"}


def _note(journal: Path, **entry: object) -> None:
    with journal.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def notes(journal: Path) -> list[dict[str, Any]]:
    """Return what was noted so far; a line that is being written does not count."""
    if not journal.exists():
        return []
    *lines, _ = journal.read_text().split("\n")
    return [json.loads(line) for line in lines]
