"""The tables of this folder: rounds of a peer, the peer again, and ours."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.frame.page import head, ms, ratio_cells


def peer_head(first: Sequence[str], peer: str, ours: str) -> str:
    """Return the head of a table whose rows are `first` and `peer_cells`."""
    return head([*first, f"{peer}, ms", f"{ours}, ms", "ratio", "95 % interval", "noise", "95 % interval"], len(first))


def peer_cells(rounds: Sequence[Sequence[float]]) -> list[str]:
    """Return ms of the peer and ours, the ratio, and as the noise that of the peer's second kind to its first."""
    columns = list(zip(*rounds, strict=True))
    found = [ms(columns[kind]) for kind in (0, 2)]
    for kind in (2, 1):
        found += ratio_cells([taken[kind] / taken[0] for taken in rounds])
    return found
