"""Block quantisation against a reference in torch, random numbers included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError, MismatchError
from hvd_compress.native import BlockCodes, BlockFormat, RandomKey
from tests.native.cases import (
    DTYPES,
    FINITE_KINDS,
    OUTS,
    assert_inputs_kept,
    assert_same,
    correct,
    examples,
    place_out,
    tensors,
)
from tests.native.test_quantize import philox

FORMATS = st.one_of(
    st.builds(BlockFormat, st.sampled_from([2, 2.5, 3, 4, 8]), st.sampled_from([64, 128, 1024])),
    st.builds(BlockFormat, st.just(2), st.sampled_from([64, 256]), st.just("ternary")),
)
KEYS = st.one_of(
    st.none(),
    st.builds(RandomKey, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
)


LEVELS = {8: 127, 4: 7, 3: 3, 2.5: 2, 2: 1}
BASES = {3: 8, 2.5: 5}


def random_bits(n: int, key: RandomKey) -> torch.Tensor:
    """In the order that csrc/include/hvd_compress/blocks.hpp fixes."""
    i = np.arange(n, dtype=np.uint64)
    counter = i // np.uint64(128) * np.uint64(16) + i % np.uint64(16)
    words = philox(
        np.stack([counter, counter >> np.uint64(32), np.full_like(i, key.step), np.full_like(i, key.bucket)]),
        (key.seed & 0xFFFFFFFF, key.seed >> 32),
    )
    word = words[(i // np.uint64(16) % np.uint64(4)).astype(int), i.astype(int)]
    even = i // np.uint64(64) % np.uint64(2) == 0
    return torch.from_numpy(np.where(even, word >> np.uint64(16), word & np.uint64(0xFFFF)).astype(np.int64))


def sum_of_lanes(rows: torch.Tensor) -> torch.Tensor:
    """Of each row, a multiple of 16 elements, added in the order of the header."""
    lanes = torch.zeros(rows.shape[0], 16)
    for part in rows.split(16, dim=1):
        lanes = lanes + part
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def quantized(v: torch.Tensor, form: BlockFormat, key: RandomKey | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole numbers (n,) int64 and units (blocks,) bf16 of v (n,) fp32."""
    n, blocks, levels = v.numel(), form.blocks(v.numel()), LEVELS[form.bits]
    rows = torch.zeros(blocks * form.block)
    rows[:n] = v
    rows = rows.view(blocks, form.block)
    counts = torch.full((blocks,), float(form.block))
    if n % form.block:
        counts[-1] = n % form.block
    threshold = torch.zeros(blocks)
    if form.fit == "max":
        unit = torch.where(rows.isnan().any(1), torch.nan, rows.abs().nan_to_num(0, math.inf).amax(1)) / levels
    else:
        threshold = 0.7 * (sum_of_lanes(rows.abs()) / counts)
        above = rows.abs() > threshold[:, None]
        unit = sum_of_lanes(rows.abs() * above) / above.sum(1)
        unit = torch.where(above.any(1), unit, 0.0)
        unit = torch.where(threshold.isfinite(), unit, threshold)
    units = unit.bfloat16()
    if key is not None and form.fit == "max":
        units = torch.where(units.float() < unit, (units.view(torch.int16) + 1).view(torch.bfloat16), units)
    units[~units.isfinite()] = torch.nan
    units[units.abs() < 2.0**-126] = 0.0
    sends = units.isfinite() & (units > 0)
    inverse = torch.where(sends, 1 / units.float(), 0.0)[:, None]
    clean = torch.where(sends[:, None], rows, 0.0)
    if form.fit == "ternary":
        q = clean.sign() * (clean.abs() > threshold[:, None])
    elif key is None:
        q = (clean * inverse).round().clamp(-levels, levels)
    else:
        steps = (clean.abs() * inverse * 65536.0).floor().clamp(max=65536.0 * levels).long().reshape(-1)[:n]
        q = torch.zeros(blocks * form.block)
        q[:n] = (steps + random_bits(n, key) >> 16).float()
        q = q.view(blocks, form.block) * torch.where(clean < 0, -1.0, 1.0)
    return q.reshape(-1)[:n].long(), units


def unpacked(codes: torch.Tensor, bits: float, n: int) -> torch.Tensor:
    """Whole numbers (n,); what pads the last group must be 0."""
    groups = codes.view(-1, int(8 * bits)).long()
    if bits in BASES:
        wide = int(4 * bits) - 8  # bits above the lowest byte
        above = torch.stack([groups[:, 16:] >> at & (1 << wide) - 1 for at in range(0, 8, wide)], 2).flatten(1)
        digits = [(groups[:, :16] + above * 256) // BASES[bits] ** part % BASES[bits] for part in range(4)]
        numbers = torch.stack(digits, 1).reshape(-1) - LEVELS[bits]
        assert not numbers[n:].any()
        return numbers[:n]
    bits = int(bits)
    parts = [groups >> part * bits & (1 << bits) - 1 for part in range(8 // bits)]
    numbers = torch.stack(parts, 1).reshape(-1)
    assert not numbers[n:].any()
    return torch.where(numbers >= 1 << (bits - 1), numbers - (1 << bits), numbers)[:n]


def decoded(source: BlockCodes, form: BlockFormat, n: int) -> torch.Tensor:
    return unpacked(source.codes, form.bits, n).float() * source.units.float().repeat_interleave(form.block)[:n]


def assert_codes(found: BlockCodes, v: torch.Tensor, form: BlockFormat, key: RandomKey | None) -> torch.Tensor:
    """Check what stands for v; return what is left of v."""
    q, units = quantized(v, form, key)
    assert found.codes.numel() + 2 * found.units.numel() == form.nbytes(v.numel())
    assert_same(found.units, units)
    assert torch.equal(unpacked(found.codes, form.bits, v.numel()), q)
    each = units.float().repeat_interleave(form.block)[: v.numel()]
    return torch.where(each.isfinite(), v - q.float() * each, v)


@given(data=st.data(), form=FORMATS, key=KEYS, which=OUTS)
@examples(300)
def test_codes_units_and_rest(data: st.DataObject, form: BlockFormat, key: RandomKey | None, which: str) -> None:
    grad = data.draw(tensors(data.draw(st.sampled_from(DTYPES))))
    residual = data.draw(tensors(torch.float32, grad.numel()))
    before = (grad.clone(), residual.clone())
    argument, out = place_out(which, grad, residual)
    found = native.block_quantize(grad, residual, form, key=key, out=argument)
    assert_same(out, assert_codes(found, correct(*before), form, key))
    assert_inputs_kept(out, (grad, residual), before)


@given(data=st.data(), form=FORMATS, key=KEYS)
@examples(100)
def test_without_a_residual_the_gradient_stays(data: st.DataObject, form: BlockFormat, key: RandomKey | None) -> None:
    grad = data.draw(tensors(data.draw(st.sampled_from(DTYPES))))
    before = grad.clone()
    found = native.block_quantize(grad, None, form, key=key)
    assert_codes(found, before.float(), form, key)
    assert_same(grad, before)


@given(data=st.data(), form=FORMATS.filter(lambda form: form.fit == "max"))
@examples(100)
def test_nothing_is_lost_to_the_last_bit(data: st.DataObject, form: BlockFormat) -> None:
    """In exact arithmetic, which fp64 is for sums of two fp32 that are near each other."""
    grad = data.draw(tensors(torch.float32, kinds=(FINITE_KINDS[0], FINITE_KINDS[1], FINITE_KINDS[4])))
    residual = torch.zeros_like(grad)
    found = native.block_quantize(grad, residual, form)
    sent = decoded(found, form, grad.numel()).double()
    assert torch.equal(residual.double() + sent, grad.double())


@st.composite
def sources(draw: st.DrawFn, form: BlockFormat, n: int, count: int) -> list[BlockCodes]:
    """What other ranks may send, and codes that no kernel makes: -levels - 1, units of every kind."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(count):
        codes = torch.randint(0, 256, (form.code_bytes(n),), dtype=torch.uint8, generator=generator)
        units = draw(st.sampled_from(FINITE_KINDS))(form.blocks(n), generator).abs().bfloat16()
        found.append(BlockCodes(codes, units))
    return found


def numbers_of(source: BlockCodes, form: BlockFormat, n: int) -> torch.Tensor:
    """As decoded(), whatever pads the last group."""
    return decoded(source, form, -(-n // 64) * 64)[:n]


@given(data=st.data(), form=FORMATS, weight=st.sampled_from([1.0, 0.25, -1 / 3]))
@examples(200)
def test_sum(data: st.DataObject, form: BlockFormat, weight: float) -> None:
    out = data.draw(tensors(data.draw(st.sampled_from(DTYPES))))
    n = out.numel()
    parts = data.draw(sources(form, n, data.draw(st.integers(1, 5))))
    total = numbers_of(parts[0], form, n)
    for part in parts[1:]:
        total = total + numbers_of(part, form, n)
    expected = (total * torch.tensor(weight)).to(out.dtype)
    finite = native.block_sum(parts, out, form, weight)
    assert_same(out, expected)
    assert bool(finite) == bool(expected.isfinite().all())


@given(data=st.data(), form=FORMATS, key=KEYS, kept=st.sampled_from(["own", "other", "no"]))
@examples(300)
def test_sum_and_quantize(data: st.DataObject, form: BlockFormat, key: RandomKey | None, kept: str) -> None:
    dtype = torch.float32 if kept == "own" else data.draw(st.sampled_from(DTYPES))
    own = data.draw(tensors(dtype))
    n, before = own.numel(), own.clone()
    others = data.draw(sources(form, n, data.draw(st.integers(0, 4))))
    place = data.draw(st.integers(0, len(others)))
    summands = [numbers_of(other, form, n) for other in others]
    summands.insert(place, before.float())
    total = summands[0]
    for summand in summands[1:]:
        total = total + summand
    rest = {"own": own, "other": torch.empty(n), "no": None}[kept]
    found = native.block_sum_quantize(own, others, place, form, key=key, rest=rest)
    left = assert_codes(found, total, form, key)
    if rest is not None:
        assert_same(rest, left)
    if kept != "own":
        assert_same(own, before)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("form", [BlockFormat(8), BlockFormat(2, fit="ternary")], ids=str)
def test_one_that_is_not_finite_is_seen_by_who_receives(value: float, form: BlockFormat) -> None:
    grad, residual = torch.ones(200), torch.zeros(200)
    grad[70] = value
    found = native.block_quantize(grad, residual, form)
    assert found.units.isfinite().tolist() == [True, False, True, True]
    assert found.units.view(torch.int16)[1] == 0x7FC0
    out = torch.empty(200)
    assert not native.block_sum([found], out, form, 1.0)
    assert_same(residual, torch.where(torch.arange(200) // 64 == 1, grad, residual))


@pytest.mark.parametrize("form", [*map(BlockFormat, LEVELS), BlockFormat(2, fit="ternary")], ids=str)
def test_one_huge_element_is_sent_and_the_others_wait(form: BlockFormat) -> None:
    grad, residual = torch.full((64,), 1e-3), torch.zeros(64)
    grad[5] = 1e30
    found = native.block_quantize(grad, residual, form)
    sent = decoded(found, form, 64)
    assert sent[5] == pytest.approx(1e30, rel=1e-2)
    assert sent.count_nonzero() == 1
    assert residual.count_nonzero() >= 63


@pytest.mark.parametrize("bits", list(LEVELS))
def test_random_rounding_is_right_on_average(bits: float) -> None:
    """Five standard deviations of a number between two levels, over as many draws as there are blocks."""
    n, form = 20_000, BlockFormat(bits)
    x = torch.zeros(64)
    x[:4] = torch.tensor([1.0, 0.3, -0.7, 0.01])
    x = x.repeat(n)
    sent = torch.empty_like(x)
    native.block_sum([native.block_quantize(x, None, form, key=RandomKey(1, 2, 3))], sent, form, 1.0)
    tolerance = 5 / LEVELS[bits] / 2 / math.sqrt(n)
    torch.testing.assert_close(sent.view(n, 64).mean(0), x[:64], rtol=2**-16, atol=tolerance)


@pytest.mark.parametrize("bits", list(LEVELS))
def test_random_rounding_does_not_cut_the_largest(bits: float) -> None:
    """Rounded to nearest, a unit may lie below the largest / levels by 2^-9 of it: the largest is cut in each draw."""
    n, form = 20_000, BlockFormat(bits)
    levels = LEVELS[bits]
    x = torch.zeros(64)
    x[0] = levels * (1 + 2**-8 - 2**-16)
    sent = torch.empty(64 * n)
    native.block_sum([native.block_quantize(x.repeat(n), None, form, key=RandomKey(1, 2, 3))], sent, form, 1.0)
    drawn = sent.view(n, 64)[:, 0].double()
    assert abs(drawn.mean() - x[0]) < 5 * max(drawn.std().item(), 1e-6) / math.sqrt(n) + 2**-15


def test_memory_that_the_caller_keeps() -> None:
    form, grad = BlockFormat(4), torch.randn(200)
    expected = native.block_quantize(grad, None, form)
    into = BlockCodes(torch.empty_like(expected.codes), torch.empty_like(expected.units))
    assert native.block_quantize(grad, None, form, into=into).codes is into.codes
    assert torch.equal(into.codes, expected.codes)
    assert torch.equal(into.units, expected.units)
    again = native.block_sum_quantize(grad, [expected], 1, form)
    native.block_sum_quantize(grad, [expected], 1, form, into=into)
    assert torch.equal(into.codes, again.codes)
    with pytest.raises(ConfigError, match="into: codes and another tensor of the call overlap"):
        native.block_sum_quantize(grad, [into], 1, form, into=into)
    with pytest.raises(ConfigError, match=r"into: codes must be of shape \(128,\), got \(96,\)"):
        native.block_quantize(grad, None, form, into=BlockCodes(into.codes[:96], into.units))


def test_many_sources_in_memory_that_is_not_aligned() -> None:
    """More than travel with an ordinary launch, and codes that begin between two words."""
    n, form = 5000, BlockFormat(2)
    x = native.block_quantize(torch.randn(n), None, form)
    apart = BlockCodes(torch.cat([x.codes[:1], x.codes])[1:], x.units)
    total, few = torch.empty(n), torch.empty(n)
    native.block_sum([x, apart] * 300, total, form, 1.0)
    native.block_sum([apart], few, form, 600.0)
    torch.testing.assert_close(total, few)
    codes = [native.block_sum_quantize(torch.zeros(n), [each] * 40, 40, form).codes for each in (x, apart)]
    assert torch.equal(*codes)


def test_another_key_draws_other_numbers() -> None:
    x = torch.rand(4096)
    keys = [(1, 0, 0), (2, 0, 0), (1 << 32, 0, 0), (1, 1, 0), (1, 0, 1)]
    found = [native.block_quantize(x, None, BlockFormat(4), key=RandomKey(*key)).codes for key in keys]
    assert len({bytes(codes.numpy()) for codes in found}) == len(keys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 5}, "bits = 5"),
        ({"bits": True}, "bits = True"),
        ({"bits": [4]}, r"bits = \[4\]"),
        ({"bits": 4, "block": 32}, "block = 32"),
        ({"bits": 4, "block": 96}, "block = 96"),
        ({"bits": 4, "block": 2048}, "block = 2048"),
        ({"bits": 4, "fit": "ternary"}, "fit = 'ternary' with 4 bits"),
        ({"bits": 4, "fit": "mean"}, "fit = 'mean'"),
    ],
    ids=str,
)
def test_bad_formats(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BlockFormat(**arguments)  # type: ignore[arg-type]


def test_lengths_that_do_not_fit() -> None:
    form = BlockFormat(4)
    good, short = (native.block_quantize(torch.ones(n), None, form) for n in (65, 64))
    for call in (
        lambda: native.block_sum([good, short], torch.empty(65), form, 1.0),
        lambda: native.block_sum_quantize(torch.empty(65), [good, short], 0, form),
    ):
        with pytest.raises(MismatchError, match="source 1: 32 bytes of codes and 1 units for 65 elements"):
            call()
