"""What can be chosen for a bucket, and what is priced of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One call of a collective.

    Attributes:
        size: bytes of one rank's tensor; headers are not counted.
        ranks: how many take part, where those are a group: several such groups may be at work at once. None: all.
    """

    verb: str
    algorithm: str
    size: float
    ranks: int | None = None


@dataclass(frozen=True)
class Path:
    """How a bucket travels, whatever is sent of it.

    Attributes:
        collective: a name of one of `collectives.COLLECTIVES`, which knows what goes together. "star" and "var" say
            whose indices AR-Topk uses.
        algorithm: of the collective's main call.
        broadcast: of AR-Topk's broadcast of indices.
    """

    collective: str
    algorithm: str = "auto"
    broadcast: str = "auto"

    def __str__(self) -> str:
        """The label that `collectives.parse` reads: "allgather", "star-ring", "star-ring+pipeline_16k"."""
        algorithm = "" if self.algorithm == "auto" else f"-{self.algorithm}"
        return self.collective + algorithm + ("" if self.broadcast == "auto" else f"+{self.broadcast}")
