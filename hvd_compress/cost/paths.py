"""What can be chosen for a bucket, and what is priced of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One collective of a scheme.

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
        scheme: a name of one of `schemes.SCHEMES`, which knows what goes together. "star" and "var" say whose indices
            AR-Topk uses.
        algorithm: of the scheme's main collective.
        broadcast: of AR-Topk's broadcast of indices.
    """

    scheme: str
    algorithm: str = "auto"
    broadcast: str = "auto"

    def __str__(self) -> str:
        """The label that `schemes.parse` reads: "allgather", "star-ring", "star-ring+pipeline_16k"."""
        algorithm = "" if self.algorithm == "auto" else f"-{self.algorithm}"
        return self.scheme + algorithm + ("" if self.broadcast == "auto" else f"+{self.broadcast}")
