"""How far a loop is: a bar in a terminal, a line every few seconds in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
BAR_WIDTH = 30
BAR_EVERY_S = 0.1
LINE_EVERY_S = 5.0


def track(items: Sequence[Item], label: str, *, show: bool) -> Iterator[Item]:
    """Yield the items and show how many are done; only one rank should have `show` set."""
    if not show:
        yield from items
    elif output_is_terminal():
        yield from _report(items, BAR_EVERY_S, lambda done: _print_bar(label, done, len(items)))
        print("\r" + " " * len(_bar(label, len(items), len(items))), end="\r", flush=True)
    else:
        yield from _report(items, LINE_EVERY_S, lambda done: print(f"{label}: {done}/{len(items)}", flush=True))


def output_is_terminal() -> bool:
    """Say whether a person's terminal shows our output.

    mpirun gives its ranks a pseudo-terminal even when its own output goes to a file, so under mpirun it is the launcher
    that counts. Where that one cannot be asked (it runs on another machine), no terminal is assumed.
    """
    if not sys.stdout.isatty():
        return False
    if "PMIX_RANK" not in os.environ:
        return True
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


def _report(items: Sequence[Item], every_s: float, report: Callable[[int], None]) -> Iterator[Item]:
    reported = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - reported >= every_s:
            report(done)
            reported = time.monotonic()
        yield item


def _print_bar(label: str, done: int, total: int) -> None:
    print("\r" + _bar(label, done, total), end="", flush=True)


def _bar(label: str, done: int, total: int) -> str:
    filled = BAR_WIDTH * done // total
    return f"{label} [{'#' * filled:.<{BAR_WIDTH}}] {done:{len(str(total))}}/{total}"
