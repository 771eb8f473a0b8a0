"""What ranks say to each other with each exchange of local steps, and what follows from it on all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from hvd_compress.errors import ConfigError, ReplicaError
from hvd_compress.frontends.local.report import RoundReport

MOST_LOST = 8
"""Rounds in a row that may not count."""

Figures = tuple[float, float, float]
"""Seconds of a step and of an exchange, and the cosine between what two ranks move in a step."""
NOTHING: Figures = (0.0, 0.0, 0.0)


class Said:
    """All but `leaving` is the same on all ranks.

    Attributes:
        leaving: whether this rank has taken its last step.
        some_leave: whether any rank has, as the last exchange said.
        report: of the last exchange in which something had moved; None before the first.
        figures: seconds of a step and of an exchange, of the slowest rank, and the cosine of the first one, as ranks
            said when the last exchange was launched.
        typical_step_s: seconds of a step of the median rank, by then; 0 before that is known.
        weight: the ranks' shares of the steps of the last exchange, together.
    """

    def __init__(self, fragments: int) -> None:
        self.report: RoundReport | None = None
        self.figures, self.typical_step_s, self.weight = NOTHING, 0.0, 0.0
        self._lost = [0] * fragments  # exchanges in a row that did not count, of each fragment
        self.reset()

    def reset(self) -> None:
        """No rank leaves."""
        self.leaving = self.some_leave = False
        self._final = 0  # exchanges since all ranks have taken their last step

    def forget(self) -> None:
        """A checkpoint was loaded: no rank leaves, and no fragment has been lost."""
        self._lost = [0] * len(self._lost)
        self.reset()

    def own(self, energy: float, figures: Figures, length: int, weight: float) -> list[float]:
        """Return what this rank says: the squared norm of what it has moved, and how many steps its round has.

        Args:
            weight: the share of steps that it has taken.
        """
        return [energy, float(self.leaving), float(length), *figures, weight]

    def take(self, ranks: Sequence[Sequence[float]], fragment: int, counts: bool, mean_energy: float) -> bool:
        """Take what all have said of an exchange; return whether there is a new report.

        Args:
            counts: whether what all have brought is finite.
            mean_energy: the squared norm of its mean.

        Raises:
            ConfigError: their rounds have other numbers of steps; on all ranks.
        """
        energies, leaving, lengths, *figures, weights = zip(*ranks, strict=True)
        other = next((rank for rank, length in enumerate(lengths) if length != lengths[0]), 0)
        if other:
            raise ConfigError(
                f"a round has {lengths[0]:g} steps on rank 0 and {lengths[other]:g} on rank {other}, where 0 is of a "
                "synchronous one: let every() depend on the number that it is given, and on nothing else"
            )
        self.figures = max(figures[0]), max(figures[1]), figures[2][0]
        self.typical_step_s, self.weight = median_low(figures[0]), sum(weights)
        self.some_leave = any(leaving)
        self._final = self._final + 1 if all(leaving) else 0
        self._lost[fragment] = 0 if counts else self._lost[fragment] + 1
        report = RoundReport.of(energies, mean_energy)
        self.report = report or self.report
        return report is not None

    @property
    def is_over(self) -> bool:
        """Whether all ranks have taken their last step, and have exchanged each fragment since."""
        return self._final >= len(self._lost)

    def require_rounds_that_count(self) -> None:
        """Raise ReplicaError where too many of a fragment have not."""
        if max(self._lost) >= MOST_LOST:
            raise ReplicaError(
                f"{MOST_LOST} rounds have not counted, as what some rank has learned is not finite, and its "
                "optimizer's state neither: load a checkpoint"
            )

    def require_agreement(self) -> None:
        """Raise ReplicaError where the last exchange of a fragment did not count."""
        apart = [fragment for fragment, lost in enumerate(self._lost) if lost]
        if apart:
            raise ReplicaError(
                f"fragments {apart} of {len(self._lost)}: what some rank has learned is not finite, so ranks do not "
                "agree on the parameters: load a checkpoint"
            )
