"""When what is exchanged: synchronous steps first, then rounds of local steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hvd_compress.checks import check_whole
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.local import fragments
from hvd_compress.frontends.local.rounds import Rounds

Every = int | Callable[[int], int]
"""Steps in a round: a number, or a function of the steps so far, which is asked when a round begins."""


class Schedule:
    """Counts the steps of an optimizer, and exchanges what is due before and after each.

    Attributes:
        steps: of the optimizer so far.
    """

    def __init__(self, rounds: Rounds, *, every: Every, start_after: int, delay: int) -> None:
        """Nothing is communicated.

        Args:
            every: local steps in a round; 1 is synchronous training.
            start_after: steps that are synchronous first.
            delay: steps after which what was launched lands: 0 waits for it at once. It lands before the next exchange
                begins, however soon that is.

        Raises ConfigError for numbers that do not fit.
        """
        check_whole("start_after", start_after, 0)
        check_whole("delay", delay, 0)
        if not callable(every):
            check_whole("every", every, 1)
            apart = fragments.spacing(every, rounds.count)
            if delay > apart:
                raise ConfigError(
                    f"delay = {delay} steps, and with every={every} and {rounds.count} fragments the next exchange "
                    f"begins after {apart}: one is on its way at a time, so take a delay of at most {apart}"
                )
        self._rounds, self._every, self._start_after, self._delay = rounds, every, start_after, delay
        self.steps = 0
        self._place, self._length = 0, 0  # local steps of the round so far, and of all of it
        self._lands_after = 0

    @property
    def is_synchronous(self) -> bool:
        """Whether the coming step is."""
        return self._every == 1 or self.steps < self._start_after

    def before_step(self) -> None:
        """Exchange gradients, where the step is synchronous."""
        if self.is_synchronous:
            self._rounds.reduce()

    def after_step(self) -> None:
        """Begin and end exchanges that are due."""
        was_synchronous = self.is_synchronous
        self.steps += 1
        if was_synchronous:
            if not self.is_synchronous:
                self._rounds.begin()
            return
        if self._place == self._length:
            self._place, self._length = 0, self._next_length()
        self._place += 1
        if self._rounds.in_flight is not None and self.steps == self._lands_after:
            self._rounds.land()
        for fragment in fragments.due(self._place, self._length, self._rounds.count):
            if self._rounds.is_over:
                return
            if self._rounds.in_flight is not None:
                self._rounds.land()
            self._rounds.launch(fragment, lands_late=self._delay > 0)
            self._lands_after = self.steps + self._delay
            if not self._delay:
                self._rounds.land()

    def _next_length(self) -> int:
        if not callable(self._every):
            return self._every
        found = self._every(self.steps - 1)
        check_whole(f"every({self.steps - 1})", found, 1)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the round, and the state of rounds."""
        place = {"steps": self.steps, "place": self._place, "length": self._length, "lands_after": self._lands_after}
        return {**place, "rounds": self._rounds.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what state_dict() gave. Raises as Rounds.load_state_dict()."""
        self._rounds.load_state_dict(state["rounds"])
        self.steps, self._lands_after = state["steps"], state["lands_after"]
        self._place, self._length = state["place"], state["length"]

    def finish(self) -> None:
        """After the last step of this rank: take part in rounds until all have come to their last.

        Then ranks agree on all parameters. While steps are synchronous, all have taken as many, and agree.
        """
        if self.is_synchronous:
            return
        self._rounds.leaving = True
        while not self._rounds.is_over:
            self.after_step()
        self._rounds.go_on()
