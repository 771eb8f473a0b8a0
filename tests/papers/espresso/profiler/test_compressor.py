"""What compression takes, by size."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.compressors import BlockQuantizer, Cast, EFSign, PowerSGD, TopK
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.papers.espresso.profiler.compressor import (
    LARGEST,
    SMALLEST,
    Bench,
    compressor_named,
    measure_compressor,
    require_payloads,
    sizes_of,
)
from hvd_compress.policies.plan_settings import compressor_of
from tests.brought import brought
from tests.harness import COMPRESSORS as SUITE
from tests.played_clock import PlayedClock

CPU = torch.device("cpu")
SIZES = (256, 1024, 5000)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("topk", TopK()),
        ("topk:ratio=0.05,layerwise=true", TopK(0.05, layerwise=True)),
        ("topk: ratio = 0.05 , values=bf16", TopK(0.05, values="bf16")),
        ("blocks:bits=4", BlockQuantizer(4)),
        ("efsign", EFSign()),
    ],
)
def test_a_compressor_by_its_name(text: str, meant: object) -> None:
    assert compressor_named(text) == meant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown compressor ''; known are .*topk"),
        ("gzip", "unknown compressor 'gzip'"),
        ("topk:ratio", "'ratio' is no setting, such as ratio=0.01"),
        ("topk:rate=0.1", "topk has no setting 'rate'"),
        ("topk:ratio=much", "ratio of topk is 'much', which is no float"),
        ("topk:ratio=2", "ratio"),
    ],
)
def test_a_bad_name_is_an_error_that_says_why(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compressor_named(text)


def test_payloads_that_cannot_be_added_are_refused() -> None:
    for compressor in (PowerSGD(2), *brought("NO_PAYLOADS")):
        with pytest.raises(UnsupportedError, match="profile another compressor"):
            require_payloads(compressor)


def test_a_compressor_of_the_users_own_is_refused() -> None:
    class Own(TopK): ...

    with pytest.raises(UsageError, match="no compressor of your own"):
        require_payloads(Own(0.1))


@given(st.lists(st.integers(1, 1 << 28), min_size=1, max_size=40))
def test_sizes_go_from_the_smallest_tensor_to_the_whole_model(numels: list[int]) -> None:
    sizes = sizes_of(numels)
    assert all(a < b <= 4 * a for a, b in pairwise(sizes))
    assert sizes[0] == min(max(SMALLEST, min(numels)), LARGEST)
    assert sizes[-1] == min(max(sizes[0], sum(numels)), LARGEST)
    assert len(sizes) <= 10


@pytest.mark.parametrize("name", [name for name, one in SUITE.items() if getattr(one, "adds_up", False)])
def test_every_compressor_with_payloads_is_measured(name: str) -> None:
    """Of all whose payload stands for something by itself: curves, and bytes near those of the payloads."""
    found = measure_compressor(SUITE[name], SIZES, {"training": CPU}, budget_s=0.0)
    assert compressor_of(found.compressor) == SUITE[name]
    times = found.devices["training"]
    assert times.compress.numel == times.decompress.numel == SIZES
    for curve in (times.compress.us, times.decompress.us):
        assert all(0 < a <= b for a, b in pairwise(curve))


@pytest.mark.parametrize(
    ("compressor", "element_bytes"),
    [
        (TopK(0.01), 0.08),
        (EFSign(), 1 / 8),
        (Cast(torch.float16), 2.0),
        (BlockQuantizer(4), 0.5),
        *brought("ELEMENT_BYTES"),
    ],
)
def test_bytes_of_a_payload_are_those_of_its_elements(compressor: object, element_bytes: float) -> None:
    sizes = sizes_of([1000, 1_000_000])
    payload = measure_compressor(compressor, sizes, {"training": CPU}, budget_s=0.0).payload
    assert payload.per_element_bytes == pytest.approx(element_bytes, rel=0.08)
    assert payload.per_tensor_bytes < 200


class Slowing(PlayedClock):
    """Each call takes longer than the one before."""

    def now(self) -> float:
        self.now_s += self.waits
        return self.now_s


def test_the_device_is_waited_for_around_each_call_and_the_budget_ends_it() -> None:
    clock = Slowing()
    measure_compressor(TopK(0.1), SIZES[:1], {"training": CPU}, budget_s=0.0, make_clock=lambda _: clock)
    assert clock.waits == 2 * 2 * 3, "around the fewest calls that count, of two operations"
    long = Slowing()
    measure_compressor(TopK(0.1), SIZES[:1], {"training": CPU}, budget_s=1e9, make_clock=lambda _: long)
    assert long.waits == 2 * 2 * 30


def test_calls_that_had_to_share_a_processor_count() -> None:
    class Shared(PlayedClock):
        """One of three calls of a kind takes ten seconds, the others one."""

        def now(self) -> float:
            self.now_s += 10.0 if self.waits >= 9 else 1.0
            return self.now_s

    clock = Shared()
    found = measure_compressor(TopK(0.1), SIZES[:1], {"training": CPU}, budget_s=0.0, make_clock=lambda _: clock)
    assert found.devices["training"].compress.us == (pytest.approx(4e6),)


def test_before_a_call_the_gradient_is_drawn_anew() -> None:
    bench = Bench(EFSign(), 1000, CPU, CPU)
    first = bench._home.clone()
    bench._home.zero_()
    bench.evict()
    assert torch.equal(bench._home, first)


def test_a_larger_tensor_never_takes_less_time() -> None:
    class Quickening(PlayedClock):
        def now(self) -> float:
            self.now_s += 1.0 / (1 + self.waits)
            return self.now_s

    clock = Quickening()
    found = measure_compressor(TopK(0.1), SIZES, {"training": CPU}, budget_s=0.0, make_clock=lambda _: clock)
    for times in (found.devices["training"].compress.us, found.devices["training"].decompress.us):
        assert len(set(times)) == 1, "pooled, as each larger one was quicker"


@pytest.mark.parametrize("compressor", [TopK(0.1), BlockQuantizer(4), EFSign()])
def test_what_is_measured_has_error_feedback(compressor: TopK | BlockQuantizer | EFSign) -> None:
    bench = Bench(compressor, 1000, CPU, CPU)
    assert bench.residual is not None
    assert not bench.residual.any()
    bench.compress()
    bench.end_step()
    assert bench.residual.any()


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot measure"):
        measure_compressor(TopK(0.1), [], {"training": CPU})
    with pytest.raises(ConfigError, match="cannot measure"):
        measure_compressor(TopK(0.1), SIZES, {})
