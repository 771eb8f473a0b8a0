"""The cases of the conformance suite: legal combinations of a compressor, a collective and a number of ranks.

`make test` runs a covering of all pairs of one compressor a class and few numbers of ranks, `make test-all` a covering
of all pairs, `make conformance` (pytest --whole-product) the product. All follow from the compressors of
tests/harness.py and from what collectives say that they carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Compressor
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.covering import combinations, completed
from tests.harness import COMPRESSORS, FIRST_NAMES, SHAPES, asked_for, planned

SIZES = (3, 4, 2, 7, 1)
"""Those first that show most for their time: where a pair may be held with any, it is held with the first."""
FIRST_SIZES = (1, 3, 4)

TABLE = COMPRESSORS


@dataclass(frozen=True)
class Case:
    """A compressor of the table, a collective or an option that carries it, and how many ranks there are."""

    name: str
    collective: str
    size: int

    @property
    def compressor(self) -> Compressor:
        return TABLE[self.name]

    @property
    def request(self) -> Request:
        by_request = self.collective in asked_for(self.compressor)
        return (Request if by_request else planned)(self.compressor, self.collective)

    @property
    def hosts(self) -> tuple[int, ...]:
        """By rank, the host that it plays to be on."""
        return in_pairs(self.size)

    @property
    def number(self) -> int:
        """The same in each run; what differs from case to case, and need not be covered, follows from it."""
        return list(TABLE).index(self.name) + self.size

    def __str__(self) -> str:
        return f"{self.name}-{self.collective}-{self.size}"


OPTIONS = tuple(Case(*values) for values in brought("CASES"))
"""Collectives of guests, which only a plan names."""


def in_pairs(size: int) -> tuple[int, ...]:
    """Return a host for each of some ranks: two a host, and perhaps one that is alone."""
    return tuple(rank // 2 for rank in range(size))


@cache
def is_legal(name: str, collective: str, size: int) -> bool:
    """Whether a request may say so, and the in-process engine can do it with so many ranks."""
    if collective not in asked_for(TABLE[name]):
        return False
    can = replace(InProcessWorld(size).engine(0).capabilities, hosts=in_pairs(size))
    return collective == "auto" or not set(collectives.meanings(collective)).isdisjoint(runnable(TABLE[name], can))


def runnable(compressor: Compressor, can: Capabilities) -> set[str]:
    """Return the collectives by which an engine can carry a compressor, whether or not one of them is ever chosen."""
    layout = Layout(tuple(SHAPES), tuple(SHAPES.values()))
    return {path.collective for path in collectives.runnable(compressor, layout, can)}


@cache
def cases(whole: bool = False) -> list[Case]:
    """Return all legal combinations, or a covering of their pairs that holds first_cases(); and OPTIONS."""
    legal = combinations(True, is_legal, tuple(TABLE), collective_names(TABLE), SIZES)
    first = [(case.name, case.collective, case.size) for case in first_cases()]
    found = legal if whole else completed(first, legal)
    everything = {*(Case(*values) for values in found), *OPTIONS}
    return sorted(everything, key=lambda case: (list(TABLE).index(case.name), str(case)))


@cache
def first_cases() -> frozenset[Case]:
    """Return the cases of the first level: a covering of the pairs of FIRST_NAMES, collectives and FIRST_SIZES."""
    found = combinations(False, is_legal, FIRST_NAMES, collective_names(FIRST_NAMES), FIRST_SIZES)
    return frozenset(Case(*values) for values in found)


def collective_names(names: Iterable[str]) -> list[str]:
    """Return all collectives that requests of some compressors may name."""
    return sorted({collective for name in names for collective in asked_for(TABLE[name])})


def is_first(params: Mapping[str, Any]) -> bool:
    """Whether a test with these parameters is of the first level: a case of it, or one compressor a class."""
    if isinstance(case := params.get("case"), Case):
        return case in first_cases()
    values = [params.get("name"), *(params.get("decoder") or ())[:1], getattr(params.get("on_device"), "name", None)]
    return all(value in FIRST_NAMES for value in values if value in TABLE)


Test = TypeVar("Test", bound=Callable[..., object])


def where(applies: Callable[[Case], bool]) -> Callable[[Test], Test]:
    """Decorate a test of a `case` that runs with those for which the property is promised."""

    def mark(test: Test) -> Test:
        test.where = applies  # type: ignore[attr-defined]
        return test

    return mark


def chosen(test: Callable[..., object], found: Sequence[Case]) -> list[Case]:
    """Return the cases that a test runs with."""
    return [case for case in found if getattr(test, "where", bool)(case)]
