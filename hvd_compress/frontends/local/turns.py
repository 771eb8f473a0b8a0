"""What each rank has done of the steps between two exchanges of a fragment, by which its part in their mean weighs."""

from __future__ import annotations

from typing import Any


class Turns:
    """Counts the steps since each fragment was exchanged last, and those of them that this rank has taken.

    A rank that is slower than others, that has come in the middle, or has had its last batch, has taken fewer: the mean
    weighs what each has learned by the steps in which it has (McMahan et al. 2017, Algorithm 1, by samples).
    """

    def __init__(self, fragments: int) -> None:
        self._steps, self._own = [0] * fragments, [0] * fragments
        self._launched = (0, 0)

    def reset(self) -> None:
        """Ranks have the same parameters."""
        self._steps, self._own = [0] * len(self._steps), [0] * len(self._own)

    def step(self, is_own: bool) -> None:
        """A step of the training is over; `is_own`: which this rank has taken."""
        self._steps = [each + 1 for each in self._steps]
        self._own = [each + is_own for each in self._own]

    def launch(self, fragment: int) -> float:
        """Return the share of steps that this rank has taken, in [0, 1], of a fragment whose exchange begins."""
        self._launched = steps, own = self._steps[fragment], self._own[fragment]
        return own / max(steps, 1)

    def land(self, fragment: int) -> None:
        """That exchange is over, and counts."""
        steps, own = self._launched
        self._steps[fragment] -= steps
        self._own[fragment] -= own

    def meet(self, other: dict[str, Any]) -> None:
        """Ranks have met that have come to different places: steps are those of `other`, of the furthest."""
        self._steps = list(other["steps"])

    @property
    def own(self) -> int:
        """The steps that this rank has taken and not exchanged, of all fragments."""
        return sum(self._own)

    def state_dict(self) -> dict[str, Any]:
        """Return both counts, and those of what is on its way."""
        return {"steps": list(self._steps), "own": list(self._own), "launched": self._launched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what state_dict() gave."""
        self._steps, self._own, self._launched = list(state["steps"]), list(state["own"]), state["launched"]
