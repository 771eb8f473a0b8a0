from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.buckets.plan import Slot, plan_buckets

FLOAT, HALF = torch.float32, torch.float16


def slots(**numels: int) -> dict[str, Slot]:
    return {name: Slot((numel,), HALF if name.startswith("h") else FLOAT) for name, numel in numels.items()}


def names(plans) -> list[tuple[str, ...]]:
    return [plan.names for plan in plans]


def test_a_bucket_is_closed_when_the_next_parameter_does_not_fit() -> None:
    plans = plan_buckets("abcd", slots(a=10, b=10, c=10, d=10), threshold_bytes=100)
    assert names(plans) == [("a", "b"), ("c", "d")]
    assert plans[0].segments == (10, 10)
    assert plans[0].numel == 20


def test_a_parameter_larger_than_the_threshold_travels_alone() -> None:
    assert names(plan_buckets("abc", slots(a=1, b=1000, c=1), 100)) == [("a",), ("b",), ("c",)]


def test_threshold_zero_gives_every_parameter_its_own_bucket() -> None:
    assert names(plan_buckets("abc", slots(a=1, b=0, c=1), 0)) == [("a",), ("b",), ("c",)]


def test_dtypes_do_not_mix_and_buckets_come_in_order_of_completion() -> None:
    order = ["a", "h1", "b", "h2", "c"]
    plans = plan_buckets(order, slots(a=10, b=10, c=10, h1=10, h2=10), 80)
    assert names(plans) == [("a", "b"), ("h1", "h2"), ("c",)]
    assert [plan.dtype for plan in plans] == [FLOAT, HALF, FLOAT]


def test_devices_do_not_mix_either() -> None:
    """Not even within a group."""
    table = slots(a=10, b=10, c=10, h1=10)
    places = {"a": "cpu", "b": "cuda 1", "c": "cuda 1", "h1": "cuda 1"}
    table = {name: Slot(slot.shape, slot.dtype, places[name]) for name, slot in table.items()}
    plans = plan_buckets(["a", "b", "h1", "c"], table, 1000, groups=[("a", "b", "c")])
    assert names(plans) == [("a",), ("h1",), ("b", "c")]
    assert [plan.place for plan in plans] == ["cpu", "cuda 1", "cuda 1"]


def test_a_group_travels_together_where_its_last_member_stands() -> None:
    plans = plan_buckets("abcd", slots(a=10, b=10, c=10, d=10), 40, groups=[("a", "c")])
    assert names(plans) == [("b",), ("a", "c"), ("d",)]


def test_a_group_is_not_split_when_it_exceeds_the_threshold() -> None:
    plans = plan_buckets("abcd", slots(a=100, b=100, c=100, d=1), 40, groups=[("a", "b", "c")])
    assert names(plans) == [("a", "b", "c"), ("d",)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=30),
    st.integers(0, 300),
    st.integers(0, 4),
)
def test_every_parameter_is_in_one_bucket_within_the_threshold(
    parameters: list[tuple[int, bool]], threshold: int, groups: int
) -> None:
    order = [f"{'h' if half else 'f'}{i}" for i, (_, half) in enumerate(parameters)]
    table = slots(**{name: numel for name, (numel, _) in zip(order, parameters, strict=True)})
    grouped = [order[start::4] for start in range(groups)]
    plans = plan_buckets(order, table, threshold, grouped)
    assert sorted(name for plan in plans for name in plan.names) == sorted(order)
    units = [set(group) for group in grouped]
    for plan in plans:
        assert {table[name].dtype for name in plan.names} == {plan.dtype}
        alone = len(plan.names) == 1 or any(set(plan.names) <= unit for unit in units)
        assert alone or plan.numel * plan.dtype.itemsize <= threshold
    for unit in units:
        for dtype in (FLOAT, HALF):
            members = {name for name in unit if table[name].dtype == dtype}
            assert sum(bool(members & set(plan.names)) for plan in plans) <= 1
