"""What to do about a prediction that a run does not confirm: which term is most wrong, and what that suggests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hvd_compress.papers.espresso.timeline.boxes import COMPUTATION, TERMS

NEAR = 0.15
"""A step that is predicted within this share of what it takes is predicted well."""
_, COMPRESSION, COMMUNICATION = TERMS
AGAIN = "run `hvd-compress profile` again"
LONGER = {
    COMPUTATION: "batch or machine are not those of the profile, or compression takes processors from it; "
    f"{AGAIN}, with as many ranks a host as the job has",
    COMPRESSION: "ranks that share processors wait for each other; "
    f"{AGAIN}, with as many ranks a host as the job has, or give each rank a processor",
    COMMUNICATION: "it holds the waiting for late ranks, which timelines of all ranks show (HVD_COMPRESS_TIMELINE with "
    f"{{rank}} in its name); where none is late, the network has changed; {AGAIN}",
}
SHORTER = {
    COMPUTATION: f"the profile is of a larger batch, or of a machine that did other work; {AGAIN}",
    COMPRESSION: f"the profile is of a machine that did other work, or has fewer processors; {AGAIN}",
    COMMUNICATION: f"the network was busy in the profile, or has changed; {AGAIN}",
}
TOGETHER = (
    "no term by itself is that wrong, nor all together, and the step is: what is predicted to overlap does not, as "
    "where ranks share processors, or where many buckets are hierarchical"
)
SEVERAL = f"no term by itself is that wrong, and the step is: {AGAIN}, and make the plan anew"


@dataclass(frozen=True)
class Row:
    """A term of all buckets, or the step: predicted, and as the median of what was measured."""

    term: str
    predicted_s: float
    measured_s: float

    @property
    def off_s(self) -> float:
        return self.measured_s - self.predicted_s


def advice(*rows: Row) -> Iterator[str]:
    """Yield one or two lines for the terms and, last, the step."""
    *terms, step = rows
    near = abs(step.off_s) <= NEAR * step.measured_s
    if near:
        yield f"the step is predicted within {100 * NEAR:.0f} %"
    worst = max(terms, key=lambda row: abs(row.off_s))
    if abs(worst.off_s) <= NEAR * step.measured_s:
        if not near:
            alone = step.off_s > 0 and abs(sum(term.off_s for term in terms)) <= NEAR * step.measured_s
            yield TOGETHER if alone else SEVERAL
        return
    word, causes = ("longer", LONGER) if worst.off_s > 0 else ("shorter", SHORTER)
    yield (
        f"most wrong is {worst.term}, {1e3 * abs(worst.off_s):.3f} ms {word} than predicted: {causes[worst.term]}, "
        "and make the plan anew"
    )
