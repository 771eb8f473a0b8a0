"""What can be chosen for a bucket: a scheme with the algorithms of its collectives, and what it launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_compress.engines.names import ALGORITHMS, ALLGATHERS, BROADCASTS
from hvd_compress.errors import ConfigError

if TYPE_CHECKING:
    from hvd_compress.engines.base import Capabilities

INDEX_BYTES = VALUE_BYTES = 4
"""On the wire a kept element has an int32 index and an fp32 value, whatever the gradient's dtype."""

ARTOPK = ("artopk", "star", "var")
ALGORITHMS_OF = {
    "dense": ALGORITHMS,
    "allgather": ALLGATHERS,
    **dict.fromkeys(ARTOPK, ALGORITHMS),
    "alltoall": (),
    "parameter-server": (),
    "alltoall-allgather": (),
    "gather-broadcast": (),
}
"""By scheme: the algorithms of its main collective. Those after "alltoall" have costs, but training cannot run them."""


@dataclass(frozen=True)
class Stage:
    """One collective of a scheme. `size` is the bytes of one rank's tensor; headers are not counted."""

    verb: str
    algorithm: str
    size: float


@dataclass(frozen=True)
class Candidate:
    """A way to exchange a bucket.

    Attributes:
        scheme: a key of ALGORITHMS_OF. "artopk" stands for "star", which costs the same; "var" has one more collective.
        algorithm: of the allreduce; of the all-gather where that is the scheme.
        broadcast: of AR-Topk's broadcast of indices.

    Raises ConfigError for names that are unknown or do not go together.
    """

    scheme: str
    algorithm: str = "auto"
    broadcast: str = "auto"

    def __post_init__(self) -> None:
        if self.scheme not in ALGORITHMS_OF:
            raise ConfigError(f"unknown scheme {self.scheme!r}; known are {', '.join(ALGORITHMS_OF)}")
        _one_of(f"algorithm of {self.scheme}", self.algorithm, ALGORITHMS_OF[self.scheme])
        _one_of(f"broadcast of {self.scheme}", self.broadcast, BROADCASTS if self.scheme in ARTOPK else ())

    @classmethod
    def parse(cls, label: str) -> Candidate:
        """Read what `str` writes: "allgather", "artopk-ring", "artopk-ring+pipeline_16k"."""
        for scheme in sorted(
            ALGORITHMS_OF, key=len, reverse=True
        ):  # alltoall-allgather is not an algorithm of alltoall
            if label == scheme or label.startswith((scheme + "-", scheme + "+")):
                algorithm, _, broadcast = label.removeprefix(scheme).removeprefix("-").partition("+")
                return cls(scheme, algorithm or "auto", broadcast or "auto")
        raise ConfigError(f"unknown candidate {label!r}; schemes are {', '.join(ALGORITHMS_OF)}")

    def __str__(self) -> str:
        algorithm = "" if self.algorithm == "auto" else f"-{self.algorithm}"
        return self.scheme + algorithm + ("" if self.broadcast == "auto" else f"+{self.broadcast}")

    def stages(self, numel: int, ratio: float, element_bytes: int, world_size: int) -> tuple[Stage, ...]:
        """Return the collectives in the order in which they run, for k = kept(numel, ratio) and M = numel elements.

        | scheme             | collectives                                               |
        | dense              | allreduce of M                                            |
        | alltoall           | all-to-all of M, all-gather of M/N                        |
        | allgather          | all-gather of 8k                                          |
        | artopk, star       | broadcast of 4k, allreduce of 4k (Eq. 4)                  |
        | var                | all-gather of 8 bytes, then as star                       |
        | parameter-server   | gather of M, linear broadcast of M (Table I)              |
        | alltoall-allgather | all-to-all of 8k, all-gather of 8k/N: compressed twice    |
        | gather-broadcast   | gather of 8k, broadcast of 8k: compressed twice           |
        """
        dense, k = numel * element_bytes, kept(numel, ratio)
        pairs = k * (INDEX_BYTES + VALUE_BYTES)
        if self.scheme in ARTOPK:
            variances = (Stage("allgather", "auto", 8),) if self.scheme == "var" else ()
            indices = Stage("broadcast", self.broadcast, k * INDEX_BYTES)
            return (*variances, indices, Stage("allreduce", self.algorithm, k * VALUE_BYTES))
        if self.scheme == "dense":
            return (Stage("allreduce", self.algorithm, dense),)
        if self.scheme == "allgather":
            return (Stage("allgather", self.algorithm, pairs),)
        if self.scheme == "parameter-server":
            return (Stage("gather", "auto", dense), Stage("broadcast", "linear", dense))
        if self.scheme == "gather-broadcast":
            return (Stage("gather", "auto", pairs), Stage("broadcast", "auto", pairs))
        size = dense if self.scheme == "alltoall" else pairs
        return (Stage("alltoall", "auto", size), Stage("allgather", "auto", size / world_size))


def kept(numel: int, ratio: float) -> int:
    """Return k, as the sparsifiers count it for a bucket that is selected from as a whole.

    Raises ConfigError for a ratio outside (0, 1] or a numel below 0.
    """
    if not 0 < ratio <= 1:
        raise ConfigError(f"ratio = {ratio} lies outside (0, 1]; it is the share that is sent: one per cent is 0.01")
    if numel < 0:
        raise ConfigError(f"numel = {numel} is negative")
    return max(1, round(ratio * numel)) if numel else 0


def candidates(can: Capabilities, schemes: Sequence[str] = ("dense", "allgather", "artopk")) -> tuple[Candidate, ...]:
    """Return every way in which an engine can run these schemes, "auto" first. The same order on every rank."""
    found = []
    for scheme in schemes:
        forced = can.allgathers if scheme == "allgather" else can.algorithms if ALGORITHMS_OF.get(scheme) else ()
        broadcasts = can.broadcasts if scheme in ARTOPK else ()
        found += [Candidate(scheme, name, way) for name in ("auto", *forced) for way in ("auto", *broadcasts)]
    return tuple(found)


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value != "auto" and value not in known:
        raise ConfigError(f"unknown {what}: {value!r}; known are {', '.join(('auto', *known))}")
