"""What was done when, for people: named tasks in the rows of a picture or a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COMPUTATION = "computation"
TERMS = (COMPUTATION, "compression", "communication")
ROWS = (COMPUTATION, "compression: training device", "compression: host", "link within hosts", "link across hosts")
"""As in the paper's Figure 2, from top to bottom. The first two share the training device."""


@dataclass(frozen=True)
class Box:
    """A task that took some time.

    Attributes:
        tensor: its number in backward order; -1 for what is no tensor's.
        name: of the tensor or bucket.
        task: what is done, such as "allgather*@across".
        lane: what was busy; one task at a time.
        row: of a picture.
        term: one of TERMS.
    """

    tensor: int
    name: str
    task: str
    lane: str
    row: str
    term: str
    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


def seconds_by_term(found: Sequence[Box]) -> dict[str, float]:
    """Return the seconds of all boxes of each term, summed."""
    return {term: sum(box.ns for box in found if box.term == term) * 1e-9 for term in TERMS}
