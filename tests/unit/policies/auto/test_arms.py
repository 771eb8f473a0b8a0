"""What is tried: ways that an engine can carry, and none twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective
from hvd_compress.compressors import Cast
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.policies.auto.arms import Arm, Choices, Family, Named, make_arms
from hvd_compress.policies.auto.quality import candidates
from hvd_compress.policies.prices import Prices
from hvd_compress.request.request import Request
from tests.unit.policies.auto.simulated import CAN, Priced

NEAR = Family(Request(Cast()), candidates("near"))
FAST, SLOW = Formulas(1e-6, 8 / 25e9, 4), Formulas(1e-3, 8 / 1e8, 4)


def arms_of(layouts: list[Layout], choices: Choices = NEAR, costs: Formulas = FAST, ranks: int = 4) -> list[Arm]:
    return make_arms(choices, Request(Cast()), layouts, ranks, CAN, Priced(replace(costs, world_size=ranks)))  # type: ignore[arg-type]


def collectives_of(arms: Iterable[Arm]) -> dict[str, set[str]]:
    return {arm.name: {decision.collective for decision in arm.decisions} for arm in arms}


@pytest.mark.parametrize(("shape", "ranks", "name"), [((32000, 4096), 16, "int8"), ((128256, 4096), 8, "int4")])
def test_what_transports_cannot_count_is_not_tried(shape: tuple[int, int], ranks: int, name: str) -> None:
    """As of an embedding: every rank would receive more than 2^31 - 1 bytes."""
    request = next(each for each in candidates("near") if each.name == name)
    for choices in (NEAR, Named(Request(request.compressor))):
        large, small = (arms_of([Layout.of(own)], choices, ranks=ranks) for own in (shape, (100, 100)))
        assert "allgather" in str(collectives_of(small))
        assert not any(
            d.collective == "allgather" and d.compressor == request.compressor for a in large for d in a.decisions
        )
        assert any(d.compressor == request.compressor for a in large for d in a.decisions)


class Odd(Priced):
    """A moment in which all-to-all seemed to take less."""

    def by_path(self, found: Iterable[Collective], layout: Layout) -> dict[Path, float]:
        return {
            path: s * (0.9 if path.collective == "alltoall" else 1.0)
            for path, s in super().by_path(found, layout).items()
        }


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_others_are_compared_with_is_what_trains_without_this_package(ranks: int) -> None:
    prices: Prices = Odd(replace(FAST, world_size=ranks))  # type: ignore[assignment]
    arms = make_arms(NEAR, Request(Cast()), [Layout.of(100_000)], ranks, CAN, prices)
    assert arms[0].name == "dense"
    assert arms[0].decisions[0].path == Path("dense")


def test_where_16_bits_cannot_be_summed_that_is_an_all_to_all() -> None:
    layout = Layout(Layout.of(1000).names, ((1000,),), torch.bfloat16)
    arms = arms_of([layout])
    assert arms[0].decisions[0].path == Path("alltoall")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_arm_is_tried_under_two_names(dtype: torch.dtype) -> None:
    """bf16 of a gradient of 16 bits is that gradient."""
    arms = arms_of([Layout(Layout.of(100_000).names, ((100_000,),), dtype)])
    assert not any(arm.name.startswith("bf16") and arm.decisions[0].path == arms[0].decisions[0].path for arm in arms)
    assert any(arm.name.startswith("int4") for arm in arms)


class OnlyLarge(Family):
    """By all-to-all a small bucket is nothing that could be the fastest."""

    def ways(self, layout, world_size, can):  # type: ignore[no-untyped-def]
        found = super().ways(layout, world_size, can)
        large = layout.numel > 1000
        return {one: own for one, own in found.items() if large or " by " not in one.name}


def test_a_bucket_without_an_arms_path_travels_by_its_compressor() -> None:
    choices = OnlyLarge(NEAR.request, NEAR.candidates)
    found = arms_of([Layout.of(1_000_000), Layout.of(900)], choices, replace(SLOW, alpha=0.0))
    by_path = [arm for arm in found if arm.name.startswith("int4") and " by " in arm.name]
    assert by_path
    for arm in by_path:
        assert all(decision.compressor.compresses for decision in arm.decisions), arm.name


LENGTHS = replace(CAN, takes_shorter=False)


def coded_of(arms: Iterable[Arm]) -> list[Arm]:
    return [arm for arm in arms if arm.name.startswith("int4 coded")]


def test_a_coder_is_used_where_it_shortens_exchanges_by_more_than_it_takes() -> None:
    layouts, sent = [Layout.of(2_000_000), Layout.of(10_000)], candidates("near")[3].compressor
    for can, small in ((CAN, sent.shorter), (LENGTHS, sent)):
        arms = make_arms(NEAR, Request(Cast()), layouts, 4, can, Priced(SLOW))  # type: ignore[arg-type]
        (fastest,) = (arm for arm in arms if arm.name == "int4 coded")
        assert [decision.compressor for decision in fastest.decisions] == [sent.shorter, small]
        assert not any(arm.name == "int4" for arm in arms)
    assert not coded_of(arms_of(layouts, costs=replace(SLOW, beta=8 / 1e9)))
    assert not coded_of(arms_of(layouts, Named(Request(sent)), SLOW)), "what was asked for"
    assert not coded_of(make_arms(NEAR, Request(Cast()), layouts, 4, CAN, None)), "nothing was measured"


def test_what_is_only_chosen_coded_is_an_arm_where_that_clearly_pays() -> None:
    layouts, sent = [Layout.of(2_000_000), Layout.of(10_000)], candidates("near")[-1]
    for can, small in ((CAN, sent.compressor.shorter), (LENGTHS, sent.compressor)):
        arms = make_arms(NEAR, Request(Cast()), layouts, 4, can, Priced(SLOW))  # type: ignore[arg-type]
        (fastest,) = (arm for arm in arms if arm.name == "int3 coded")
        assert [decision.compressor for decision in fastest.decisions] == [sent.compressor.shorter, small]
        assert fastest.candidate.factor == sent.factor > 1
        others = [arm.predicted for arm in arms if not arm.name.startswith("int3")]
        assert sent.factor * fastest.predicted <= 0.85 * min(others)
    at_a_gbit, at_once = arms_of(layouts, costs=replace(SLOW, beta=8 / 1e9)), arms_of([Layout.of(100)], costs=SLOW)
    unmeasured = make_arms(NEAR, Request(Cast()), layouts, 4, CAN, None)
    for arms in (at_a_gbit, at_once, unmeasured):
        assert not any(arm.name.startswith("int3") for arm in arms)


def test_what_saves_little_is_not_worth_a_loss_unless_it_was_chosen_before() -> None:
    """As for other buckets of the same gradients, by another path perhaps."""
    far, cut = Formulas(50e-3, 8 / 1e8, 4), [Layout.of(237_500)] * 8
    (chosen,) = (arm for arm in arms_of([Layout.of(1_900_000)], costs=far) if arm.name == "int3 coded")
    prices: Prices = Priced(far)  # type: ignore[assignment]
    left_out, kept = (make_arms(NEAR, Request(Cast()), cut, 4, CAN, prices, before) for before in (None, chosen))
    assert not any(arm.called == "int3" for arm in left_out)
    (again,) = (arm for arm in kept if arm.name == "int3 coded")
    assert 0.85 < again.candidate.factor * again.predicted / min(arm.predicted for arm in left_out) < 1


@pytest.mark.parametrize(("device", "coded"), [("cuda", False), ("cpu", True)])
def test_a_gpu_codes_nothing(device: str, coded: bool) -> None:
    """Nothing was measured there. What the host compresses is coded, wherever gradients are."""
    layout, request = replace(Layout.of(2_000_000), place="cuda 0"), Request(Cast(), device=device)
    arms = make_arms(Family(request, NEAR.candidates), request, [layout], 4, CAN, Priced(SLOW))  # type: ignore[arg-type]
    assert any("coded" in arm.name for arm in arms) == coded


class Unmeasured(Priced):
    """Of no all-gather anything is known."""

    def by_path(self, found: Iterable[Collective], layout: Layout) -> dict[Path, float]:
        taken = super().by_path(found, layout)
        return {path: s for path, s in taken.items() if "allgather" not in path.collective}


def test_what_was_not_measured_is_not_coded() -> None:
    prices: Prices = Unmeasured(SLOW)  # type: ignore[assignment]
    arms = make_arms(NEAR, Request(Cast()), [Layout.of(2_000_000)], 4, CAN, prices)
    assert any(arm.name.startswith("int4") for arm in arms)
    assert not coded_of(arms)
