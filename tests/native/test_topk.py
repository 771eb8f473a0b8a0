"""Exact top-k, with and without error feedback, against a stable sort of the magnitudes' bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import _native, native
from hvd_compress.native import module
from tests.native.cases import (
    DTYPES,
    FINITE_KINDS,
    OUTS,
    PAIRS,
    assert_inputs_kept,
    assert_same,
    correct,
    counts,
    examples,
    gradients,
    magnitude_key,
    place_out,
    tensors,
)


def largest(x: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending indices of the k largest magnitudes; a stable sort puts the lower index first among equals."""
    return head(order(x), k)


def order(x: torch.Tensor) -> np.ndarray:
    return np.argsort(-magnitude_key(x).numpy(), kind="stable")


def head(order: np.ndarray, k: int) -> torch.Tensor:
    return torch.from_numpy(np.sort(order[:k])).int()


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@examples(200)
def test_topk_is_the_head_of_a_stable_sort(dtype: torch.dtype, data: st.DataObject) -> None:
    x = data.draw(tensors(dtype))
    k = data.draw(counts(x.numel()))
    before = x.clone()
    indices, values = native.topk(x, k)
    assert indices.dtype == torch.int32
    assert torch.equal(indices, largest(x, k))
    assert_same(values, x[indices.long()])
    assert_same(x, before)


@given(inputs=gradients(), which=OUTS, data=st.data())
@examples(250)
def test_topk_accumulate_selects_of_the_sum(
    inputs: tuple[torch.Tensor, torch.Tensor], which: str, data: st.DataObject
) -> None:
    grad, residual = inputs
    k = data.draw(counts(grad.numel()))
    before = (grad.clone(), residual.clone())
    argument, out = place_out(which, grad, residual)
    indices, values = native.topk_accumulate(grad, residual, k, out=argument)
    corrected = correct(*before)
    assert torch.equal(indices, largest(corrected, k))
    assert_same(values, corrected[indices.long()].float())
    left = corrected.clone()
    left[indices.long()] = 0
    assert_same(out, left)
    assert_inputs_kept(out, inputs, before)


@given(inputs=gradients(kinds=FINITE_KINDS), data=st.data())
@examples(100)
def test_what_is_sent_and_what_is_left_are_the_sum_exactly(
    inputs: tuple[torch.Tensor, torch.Tensor], data: st.DataObject
) -> None:
    # The kinds are finite in fp32; here their sum has to be so in fp16 too.
    grad, residual = (x.clamp(-torch.finfo(x.dtype).max / 4, torch.finfo(x.dtype).max / 4) for x in inputs)
    corrected = correct(grad, residual)
    indices, values = native.topk_accumulate(grad, residual, data.draw(counts(grad.numel())))
    sent = torch.zeros(grad.numel(), dtype=torch.float64)
    sent[indices.long()] = values.double()
    assert torch.equal(sent + residual.double(), corrected.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_of_what_is_not_finite(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, torch.inf, -3e4, torch.nan, -torch.inf, 2.0], dtype=dtype)
    for k, expected in enumerate([[], [3], [1, 3], [1, 3, 4], [1, 2, 3, 4]]):
        assert native.topk(x, k)[0].tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "first", "second"),
    [(torch.float32, 0x7F810000, 0x7F800001), (torch.float16, 0x7C01, 0x7C02), (torch.bfloat16, 0x7F81, 0x7FC0)],
)
def test_many_nan_of_different_bits_are_equal(dtype: torch.dtype, first: int, second: int) -> None:
    """So many that the sample takes their bits for the threshold's."""
    n, k = 65_536, 3277
    generator = torch.Generator().manual_seed(8)
    bits = torch.randn(n, generator=generator).to(dtype).view(torch.int32 if dtype == torch.float32 else torch.int16)
    chosen = torch.randperm(n, generator=generator)[:6000]
    bits[chosen[:1638]], bits[chosen[1638:]] = first, second
    indices, values = native.topk(bits.view(dtype), k)
    assert torch.equal(indices, chosen.sort().values[:k].int())
    assert values.isnan().all()


def test_ties_go_to_the_lowest_index() -> None:
    x = torch.tensor([1.0, -2.0, 2.0, 0.5, -2.0, 2.0])
    assert native.topk(x, 2)[0].tolist() == [1, 2]
    assert native.topk(x, 3)[0].tolist() == [1, 2, 4]


@pytest.mark.parametrize("bit", range(31))
def test_every_bit_of_the_magnitude_decides(bit: int) -> None:
    """Two keys that differ in one bit only, so that a digit of the radix selection that is skipped shows."""
    low = 0x00000000 if bit == 30 else 0x2AAAAAAA & ~(1 << bit)
    pair = torch.tensor([low, low | 1 << bit], dtype=torch.int32).view(torch.float32)
    assert native.topk(pair.repeat(20), 20)[0].tolist() == list(range(1, 40, 2))


@pytest.mark.parametrize("bit", range(23))
def test_every_bit_decides_among_candidates(bit: int) -> None:
    """As before, but so many elements that a sample is taken; below the pairs there is nothing but small numbers."""
    low = 0x3FAAAAAA & ~(1 << bit)
    x = torch.full((40_000,), 1e-3)
    x[::100] = torch.tensor([low, low | 1 << bit], dtype=torch.int32).view(torch.float32).repeat(200)
    assert native.topk(x, 200)[0].tolist() == list(range(100, 40_000, 200))


@pytest.mark.parametrize("kernel", ["topk_accumulate", "accumulate", "sign_accumulate", "quantize_accumulate"])
def test_a_large_result_of_its_own_is_that_in_place(kernel: str) -> None:
    """It is written past the caches."""
    n = 2_200_003
    generator = torch.Generator().manual_seed(6)
    grad, residual = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    arguments: dict[str, tuple[object, ...]] = {"topk_accumulate": (n // 90,), "quantize_accumulate": (8,)}
    named = {"seed": 1, "step": 2, "bucket": 3} if kernel == "quantize_accumulate" else {}
    function, in_place, out = getattr(native, kernel), residual.clone(), torch.empty(n)
    assert out.data_ptr() % 64 == 0, "only then is it written past the caches"
    expected = function(grad, in_place, *arguments.get(kernel, ()), **named)
    found = function(grad, residual, *arguments.get(kernel, ()), out=out, **named)
    assert_same(out, in_place)
    if kernel != "accumulate":
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def sampled(n: int) -> torch.Tensor:
    """Which elements csrc/include/hvd_compress/sample.hpp looks at; n is a multiple of 256, up to 2^20."""
    block = np.arange(n // 256, dtype=np.uint64)
    x = block
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    start = (block * np.uint64(256) + (x ^ (x >> np.uint64(16))) % np.uint64(240)) // np.uint64(16) * np.uint64(16)
    return torch.from_numpy((start[:, None] + np.arange(16, dtype=np.uint64)).reshape(-1).astype(np.int64))


@pytest.mark.parametrize("way", ["queue", "bracket", "radix"])
@pytest.mark.parametrize("case", ["plain", "far too many", "far too few", "equal", "zeros", "one bin", "ascending"])
def test_every_way_of_the_gpu_finds_the_same(level: str, way: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sample misleads, and where the radix selection cannot tell elements apart by their first digit."""
    if level != "tiles":
        return  # the CPU has one way
    n = 32_768  # twice what is worth a sample, and several tiles of each way
    x = torch.randn(n, generator=torch.Generator().manual_seed(11))
    if case == "far too many":
        x[sampled(n)] *= 1e-6
    elif case == "far too few":
        x[sampled(n)] *= 1e6
    elif case == "equal":
        x.copysign_(torch.tensor(1.0)).div_(x)
    elif case == "zeros":
        x[100:].zero_()
    elif case == "one bin":
        x.mul_(1e-3).add_(1.0)
    elif case == "ascending":
        x = x.abs().sort().values
    monkeypatch.setattr(module.compiled, "way", way)
    for k in (0, 1, 99, 101, 2048, 6000, n - 1, n):
        residual = x / 2
        indices, values = native.topk_accumulate(x / 2, residual, k)
        assert torch.equal(indices, largest(x, k))
        left = x.clone()
        left[indices.long()] = 0
        assert_same(values, x[indices.long()])
        assert_same(residual, left)


def test_topk_of_many() -> None:
    x = torch.randn(3_000_001, generator=torch.Generator().manual_seed(3))
    ordered = order(x)
    for k in (1, 3_000, 300_000, 2_999_999):
        assert torch.equal(native.topk(x, k)[0], head(ordered, k))


@pytest.mark.parametrize("dtypes", PAIRS)
@given(n=st.one_of(st.integers(0, 100), st.just(20_011)), data=st.data())
@examples(30)
def test_nothing_is_written_around_the_outputs(
    dtypes: tuple[torch.dtype, torch.dtype], n: int, data: st.DataObject
) -> None:
    k = data.draw(counts(n))
    workspace_bytes = _native.topk_workspace_bytes(n, k)
    guarded = {
        "out": torch.full((n + 32,), 9, dtype=dtypes[1]),
        "indices": torch.full((k + 32,), 9, dtype=torch.int32),
        "values": torch.full((k + 32,), 9, dtype=torch.float32),
        "workspace": torch.full((workspace_bytes + 32,), 9, dtype=torch.uint8),
    }
    inner = {name: buffer[16:] for name, buffer in guarded.items()}
    grad, residual = data.draw(tensors(dtypes[0], n)), data.draw(tensors(dtypes[1], n))
    _native.topk_accumulate(
        grad.data_ptr(),
        DTYPES.index(dtypes[0]),
        residual.data_ptr(),
        inner["out"].data_ptr(),
        DTYPES.index(dtypes[1]),
        n,
        k,
        inner["indices"].data_ptr(),
        inner["values"].data_ptr(),
        inner["workspace"].data_ptr(),
        workspace_bytes,
    )
    for name, buffer in guarded.items():
        assert (torch.cat([buffer[:16], buffer[-16:]]) == 9).all(), name


def test_the_digits_of_all_keys_are_counted_only_where_a_sample_misleads(level: str) -> None:
    if level == "tiles":  # it says nothing of its way, only of its result
        return
    before = _native.slow_selections()
    native.topk(torch.randn(70_001, generator=torch.Generator().manual_seed(1)), 700)
    assert _native.slow_selections() == before
    native.topk(torch.ones(70_001), 700)
    assert _native.slow_selections() == before + 1
