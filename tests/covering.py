"""Combinations of values, of which tests need not run the product: faults mostly take two of them to be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any


def covering(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of values, one an axis, such that each pair of values is in one; for parametrize()."""
    return combinations(False, lambda *_: True, *axes)


def combinations(whole: bool, is_legal: Callable[..., bool], *axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return all legal combinations of values, one an axis, or enough of them to hold each legal pair of values.

    Pairs come from allpairspy, which is greedy and always gives the same. Where the first axes rule out much it can
    miss a pair, so what is missing is added.
    """
    everything = [values for values in product(*axes) if is_legal(*values)]
    if whole:
        return everything
    from allpairspy import AllPairs

    prefixes = {values[:length] for values in everything for length in range(1, len(axes) + 1)}
    found = [tuple(values) for values in AllPairs(list(axes), filter_func=lambda values: tuple(values) in prefixes)]
    covered = {pair for values in found for pair in pairs(values)}
    for values in everything:
        if not pairs(values) <= covered:
            found.append(values)
            covered |= pairs(values)
    return found


def pairs(values: Sequence[Any]) -> set[tuple[int, Any, int, Any]]:
    """Return the pairs of values in a combination, each with the numbers of their axes."""
    places = range(len(values))
    return {(a, values[a], b, values[b]) for a in places for b in places if a < b}


def completed(found: Sequence[tuple[Any, ...]], legal: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return combinations and, of the legal ones, those that hold most of the pairs that are missing, one by one, the
    first of several."""
    found, of = list(found), {values: pairs(values) for values in legal}
    missing = set().union(*of.values()) - {pair for values in found for pair in pairs(values)}
    while missing:
        found.append(max(legal, key=lambda values: len(of[values] & missing)))
        missing -= of[found[-1]]
    return found
