"""Networks that were left, and how a bucket travelled there: many a network comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_compress.controller.chooser import Choice
from hvd_compress.controller.network import Network
from hvd_compress.cost.paths import Path

MOST = 8
"""So many networks are remembered; the one that was left first is forgotten."""


@dataclass(frozen=True)
class Met:
    """A network that was met.

    Attributes:
        step: when it was left.
        network: as it was measured.
        ratio: k / numel of what was sent.
        way: how the bucket travelled, STAR and VAR told apart.
        choice: what stood; its seconds are what was usual.
        measured: seconds of what was tried there.
    """

    step: int
    network: Network
    ratio: float
    way: Path
    choice: Choice
    measured: Mapping[Path, float]


class Memory:
    """The networks that one bucket has left. The same on all ranks.

    recall() takes out what it finds, and keep() puts it back as it was, once a window has confirmed it: what proved
    false is not recalled again, and a network that changes little by little is tried anew. tried() drops it.
    """

    def __init__(self) -> None:
        self._met: list[Met] = []  # the last one first
        self._recalled: Met | None = None

    def keep(self, met: Met) -> None:
        """Remember a network that is left, in the place of what was known of one like it."""
        met = self._recalled or met
        self._met = [met, *(known for known in self._met if not known.network.like(met.network))][:MOST]

    def recall(self, network: Network) -> Met | None:
        """Take out what is known of a network like this one, which is travelled as before."""
        found = self._recalled = next((known for known in self._met if known.network.like(network)), None)
        self._met = [known for known in self._met if known is not found]
        return found

    def tried(self) -> None:
        """What stands now is not from here."""
        self._recalled = None
