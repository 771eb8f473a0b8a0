"""What steps and exchanges take on this rank."""

from __future__ import annotations

from time import perf_counter


class Clock:
    """Divides the time of a training into steps and exchanges.

    Attributes:
        steps: since reset().
        turn_s: seconds of steps, since begin_turn().
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._exchange_s = self.turn_s = 0.0  # of the last one
        self.reset()

    def reset(self) -> None:
        """A round begins."""
        self.steps, self._work_s = 0, 0.0

    def begin(self) -> None:
        """The first of several rounds begins: no exchange of theirs is known yet."""
        self._exchange_s = self.turn_s = 0.0
        self.reset()

    def begin_turn(self) -> None:
        """Ranks have met, or an exchange begins: the steps until the next one count from here."""
        self.turn_s = 0.0

    def works(self, steps: int = 0) -> None:
        """What has passed since the last call was work, in which this number of steps has ended."""
        passed = self._lap()
        self._work_s += passed
        self.turn_s += passed
        self.steps += steps

    def skip(self) -> None:
        """What has passed since the last call does not count."""
        self._lap()

    def exchanges(self, seconds: float | None = None) -> None:
        """What has passed since the last call was an exchange; where steps have hidden some, it took `seconds`."""
        passed = self._lap()
        self._exchange_s = passed if seconds is None else seconds

    def figures(self) -> tuple[float, float]:
        """Return seconds a step since reset(), and those of the last exchange; 0 before the first of either."""
        return self._work_s / max(self.steps, 1), self._exchange_s

    def _lap(self) -> float:
        since_s, self._since_s = self._since_s, perf_counter()
        return 0.0 if since_s is None else self._since_s - since_s
