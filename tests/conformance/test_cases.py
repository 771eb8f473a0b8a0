"""What is legal is covered, and what is not is refused at construction by an error that names what is."""

from __future__ import annotations

import inspect
import re

import pytest

from hvd_compress import collectives, compressors
from hvd_compress.cost.paths import Path
from hvd_compress.errors import ConfigError
from hvd_compress.request.request import Request
from tests.conformance.cases import FIRST_SIZES, OPTIONS, SIZES, TABLE, Case, cases, first_cases
from tests.covering import combinations, pairs
from tests.harness import FIRST_NAMES, asked_for


def values(case: Case) -> tuple[str, str, int]:
    return case.name, case.collective, case.size


def test_every_compressor_is_in_the_table() -> None:
    listed = {kind for kind in compressors.COMPRESSORS.values() if not inspect.isabstract(kind)}
    by_a_policy_alone = {compressors.DenseMomentum}  # the warm-up's; no plan can name it
    assert listed | by_a_policy_alone == {type(compressor) for compressor in TABLE.values()}


def test_every_collective_is_in_some_case() -> None:
    asked = {collective for compressor in TABLE.values() for collective in asked_for(compressor)}
    named = {name for name in collectives.labels() if any(name in collectives.names_for(c) for c in TABLE.values())}
    assert named - asked == {"alltoall", "dense"}  # what loses nothing takes them without being asked
    assert {case.collective for case in cases()} - {case.collective for case in OPTIONS} == asked


def test_the_covering_holds_every_legal_pair() -> None:
    whole = {pair for case in cases(whole=True) for pair in pairs(values(case))}
    assert {pair for case in cases() for pair in pairs(values(case))} == whole
    assert {case.size for case in cases()} == set(SIZES)


def test_the_first_level_holds_every_legal_pair_of_one_compressor_a_class() -> None:
    assert {type(TABLE[name]) for name in FIRST_NAMES} == {type(compressor) for compressor in TABLE.values()}
    assert len(FIRST_NAMES) == len({type(TABLE[name]) for name in FIRST_NAMES})
    whole = [case for case in cases(whole=True) if case.name in FIRST_NAMES and case.size in FIRST_SIZES]
    expected = {pair for case in whole if case not in OPTIONS for pair in pairs(values(case))}
    assert {pair for case in first_cases() for pair in pairs(values(case))} == expected
    assert first_cases() < set(cases())


def test_the_covering_is_part_of_the_product_and_smaller() -> None:
    few, all_ = cases(), cases(whole=True)
    assert set(few) < set(all_)
    assert len(few) < len(all_) / 2
    assert few == cases.__wrapped__(), "the same each time"


def test_a_covering_under_rules_that_rule_out_much_misses_no_pair() -> None:
    axes = [range(5)] * 4

    def is_legal(a: int, b: int, c: int, d: int) -> bool:
        return (a + b + c) % 3 == 0 and d != a

    whole = {pair for found in combinations(True, is_legal, *axes) for pair in pairs(found)}
    few = combinations(False, is_legal, *axes)
    assert {pair for found in few for pair in pairs(found)} == whole
    assert all(is_legal(*found) for found in few)


@pytest.mark.parametrize("name", TABLE)
def test_a_collective_that_does_not_carry_a_compressor_is_refused_and_the_error_names_one_that_does(name: str) -> None:
    legal = asked_for(TABLE[name])
    illegal = set(collectives.labels()) - set(legal)
    assert illegal
    for collective in illegal:
        with pytest.raises(ConfigError, match=f"{re.escape(repr(collective))}.* {re.escape(legal[-1])}"):
            Request(TABLE[name], collective)


@pytest.mark.parametrize("name", TABLE)
def test_so_it_is_where_a_plan_asks_for_it(name: str) -> None:
    carried = collectives.names_for(TABLE[name])
    runs = {collective for compressor in TABLE.values() for collective in collectives.names_for(compressor)}
    for collective in runs - set(carried):
        with pytest.raises(ConfigError, match=f"{re.escape(repr(collective))}.* {re.escape(carried[0])}"):
            collectives.build(TABLE[name], Path(collective))
