"""How long to leave alone what was looked into for nothing: twice as long each time."""

from __future__ import annotations


class Patience:
    """Grows where looking into something was in vain, and goes again where nothing is odd.

    Attributes:
        length: how long it is now, in whatever its owner counts.
    """

    def __init__(self, shortest: int, longest: int, forgets: int = 0) -> None:
        """`forgets`: one doubling is taken back each time so many in a row were not odd; 0 for never."""
        self._shortest, self._longest, self._forgets = shortest, longest, forgets
        self.restart()

    @property
    def fresh(self) -> bool:
        """Whether nothing was in vain."""
        return self.length == self._shortest

    def restart(self) -> None:
        """It was not in vain, or is of another time."""
        self.length, self._quiet = self._shortest, 0

    def in_vain(self) -> int:
        """It was looked into for nothing: return how long it was to be left alone until now."""
        length, self.length = self.length, min(2 * self.length, self._longest)
        return length

    def pass_by(self, odd: bool) -> None:
        """Take whether one more was odd."""
        self._quiet = 0 if odd else self._quiet + 1
        if self._forgets and self._quiet and self._quiet % self._forgets == 0:
            self.length = max(self.length // 2, self._shortest)
