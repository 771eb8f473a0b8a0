"""What engines have moved bytes by is lent again to later ones over the same ranks, when all of these have it back.

To make a process group or a communicator takes all its ranks, and so does freeing one. But ranks drop a model at
different moments, as their garbage collectors say. So each rank by itself puts back what a dropped engine had, and the
next engine, which all ranks make together, gets what all of them have there. Nothing is freed; as much is kept as was
in use at a time.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hvd_compress.engines.base import Engine
from hvd_compress.engines.calls import Tally
from hvd_compress.errors import ConfigError

T = TypeVar("T")
Offer = dict[str, Any]
"""What a rank says when an engine is made, as JSON: see `Pool.lend`."""
Meet = Callable[[Offer], Sequence[Offer]]
"""Return the offers of all ranks, in their order. Collective."""


class Pool(Generic[T]):
    """What moves bytes between the same ranks, each for one engine at a time, by numbers that are the same on all."""

    def __init__(self) -> None:
        self.made = 0
        self._free: dict[int, tuple[T, int]] = {}  # with the number of collectives so far
        # Of this one Python says that a finalizer may call it, whatever it interrupts.
        self._back: SimpleQueue[tuple[int, T, Tally]] = SimpleQueue()

    def lend(
        self,
        engine: Engine,
        meet: Meet,
        make: Callable[[], T],
        fits: Callable[[T], bool] = lambda held: True,
        obstacle: Callable[[], str] = str,
        thorough: bool = False,
    ) -> T:
        """Return for `engine`, until it is closed or dropped, what all ranks have back, or else a new one. Collective.

        What ended within a collective, on any rank, or after more collectives on one rank than on another, is never
        lent again: a message may be on its way.

        Args:
            make: makes a new one. Collective.
            fits: whether this rank can use one; it need not say so on all of them.
            obstacle: says what keeps this rank from making one; "" for nothing.
            thorough: let all ranks collect garbage before one is made while others are in use: a cycle may hold them.

        Raises ConfigError, on all ranks alike, where there is an obstacle to making one.
        """
        number, offers = self._agreed(meet, fits, obstacle)
        if number is None and thorough and any(offer["lent"] for offer in offers):
            gc.collect()
            number, offers = self._agreed(meet, fits, obstacle)
        if number is None:
            if words := next((offer["obstacle"] for offer in offers if offer["obstacle"]), None):
                raise ConfigError(words)
            number = max(offer["made"] for offer in offers)
            self.made = number + 1
            held, calls = make(), 0
        else:
            held, calls = self._free.pop(number)
        engine.tally = Tally(calls, calls)
        engine.put_back = weakref.finalize(engine, _put_back, self._back, number, held, engine.tally)
        engine.put_back.atexit = False
        return held

    def _agreed(
        self, meet: Meet, fits: Callable[[T], bool], obstacle: Callable[[], str]
    ) -> tuple[int | None, Sequence[Offer]]:
        while not self._back.empty():
            number, held, tally = self._back.get()
            self._free[number] = held, tally.ended
        free = {str(number): calls for number, (held, calls) in self._free.items() if fits(held)}
        lent = self.made - len(self._free)
        offers = meet({"made": self.made, "lent": lent, "free": free, "obstacle": obstacle()})
        common = [int(n) for n, calls in offers[0]["free"].items() if all(o["free"].get(n) == calls for o in offers)]
        return min(common, default=None), offers


def _put_back(back: SimpleQueue[tuple[int, T, Tally]], number: int, held: T, tally: Tally) -> None:
    if tally.is_clean:
        back.put((number, held, tally))
