"""Parts of the tree: the search spaces that Espresso's section 5.3 cripples, and where other systems look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from hvd_compress.papers.espresso.options import Constraints, Option, options

ON_CPU = Constraints(devices=("host",))
COMPRESSING = Constraints(least_compressions=1)
COMPRESSING_ON_GPU = Constraints(least_compressions=1, devices=("training",))

ALLGATHER = ("allgather*@across",)
ALLTOALL = ("alltoall*@across", "allgather*@across")


def on(space: Constraints, device: str) -> Constraints:
    """Return the options of a space that compress on one device, if they do."""
    return replace(space, devices=(device,))


def compressing(space: Constraints, device: str) -> Constraints:
    """Return the options of a space that compress on one device."""
    return replace(space, devices=(device,), least_compressions=1)


@cache
def inter_allgather() -> Constraints:
    """Compressed across hosts alone, by an all-gather; or not at all."""
    return _where(lambda option: _across(option) == ALLGATHER)


@cache
def inter_alltoall() -> Constraints:
    """Compressed across hosts alone, by all-to-all and all-gather; or not at all.

    With a decompression in between, as in Figure 4, or without (footnote 2).
    """
    return _where(lambda option: _across(option) == ALLTOALL)


@cache
def inter() -> Constraints:
    """Compressed across hosts alone, by either; or not at all."""
    return _where(lambda option: _across(option) in (ALLGATHER, ALLTOALL))


@cache
def alltoall_alltoall() -> Constraints:
    """Compressed for an all-to-all within a host, decompressed, and compressed again across hosts; or not at all.

    Across hosts by all-to-all and all-gather. Read, as the paper does not say: the last all-gather, within a host,
    carries payloads or not.
    """
    return _where(_twice_by_alltoall)


def _where(allows: Callable[[Option], bool]) -> Constraints:
    return Constraints(only=tuple(str(option) for option in options() if not option.compressions or allows(option)))


def _across(option: Option) -> tuple[str, ...]:
    """Return the collectives across hosts, and those that carry payloads elsewhere."""
    return tuple(str(task) for task in option.tasks if task.compressed or task.link == "across")


def _twice_by_alltoall(option: Option) -> bool:
    found, verbs = _across(option), [task.verb for task in option.tasks]
    return found[:3] == ("alltoall*@within", *ALLTOALL) and verbs[2:4] == ["decomp", "comp"]
