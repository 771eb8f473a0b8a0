"""When what is exchanged: synchronous steps first, then rounds of local steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_compress.checks import check_whole
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.local import fragments
from hvd_compress.frontends.local.rounds import Rounds


class Schedule:
    """Counts the steps of an optimizer, and exchanges what is due before and after each.

    Attributes:
        steps: of the optimizer so far.
    """

    def __init__(self, rounds: Rounds, *, every: int, start_after: int, delay: int) -> None:
        """Nothing is communicated.

        Args:
            every: local steps in a round; 1 is synchronous training.
            start_after: steps that are synchronous first.
            delay: steps after which what was launched lands: 0 waits for it at once.

        Raises ConfigError for numbers that do not fit.
        """
        check_whole("every", every, 1)
        check_whole("start_after", start_after, 0)
        check_whole("delay", delay, 0)
        apart = fragments.spacing(every, rounds.count)
        if delay > apart:
            raise ConfigError(
                f"delay = {delay} steps, and with every={every} and {rounds.count} fragments the next exchange begins "
                f"after {apart}: one is on its way at a time, so take a delay of at most {apart}"
            )
        self._rounds, self._every, self._start_after, self._delay = rounds, every, start_after, delay
        self.steps = 0
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
        if self._rounds.in_flight is not None and self.steps == self._lands_after:
            self._rounds.land()
        for fragment in fragments.due(self.steps - self._start_after, self._every, self._rounds.count):
            self._rounds.launch(fragment)
            self._lands_after = self.steps + self._delay
            if not self._delay:
                self._rounds.land()

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the round, and the state of rounds."""
        return {"steps": self.steps, "lands_after": self._lands_after, "rounds": self._rounds.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what state_dict() gave. Raises as Rounds.load_state_dict()."""
        self._rounds.load_state_dict(state["rounds"])
        self.steps, self._lands_after = state["steps"], state["lands_after"]

    def finish(self) -> None:
        """End the round early, after the last step: all ranks agree on all parameters."""
        if self.is_synchronous:
            return
        if self._rounds.in_flight is not None:
            self._rounds.land()
        for fragment in range(self._rounds.count):
            self._rounds.launch(fragment)
            self._rounds.land()
