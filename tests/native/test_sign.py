"""Signs with one scale: bits, scale and what is left, each against a reference that is independent of the kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from tests.native.cases import (
    DTYPES,
    FINITE_KINDS,
    OUTS,
    assert_inputs_kept,
    assert_same,
    correct,
    examples,
    gradients,
    place_out,
    sum_in_order,
    tensors,
)


def signs(x: torch.Tensor) -> torch.Tensor:
    """+1 where x is not below zero: for 0, -0 and NaN too."""
    return torch.where(x.float() < 0, -1.0, 1.0)


def packed(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits(signs(x).numpy() > 0, bitorder="little"))


def mean_magnitude(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sum_in_order(x.float().abs().double()) / max(1, x.numel()), dtype=torch.float64).float()


@given(inputs=gradients(), which=OUTS)
@examples(250)
def test_bits_scale_and_rest(inputs: tuple[torch.Tensor, torch.Tensor], which: str) -> None:
    grad, residual = inputs
    before = (grad.clone(), residual.clone())
    argument, out = place_out(which, grad, residual)
    bits, scale = native.sign_accumulate(grad, residual, out=argument)
    corrected = correct(*before)
    assert torch.equal(bits, packed(corrected))
    assert_same(scale.reshape(1), mean_magnitude(corrected).reshape(1))
    assert_same(out, (corrected.float() - scale * signs(corrected)).to(out.dtype))
    assert_inputs_kept(out, inputs, before)


@given(inputs=gradients())
@examples(100)
def test_scale_is_the_mean_and_tells_what_is_finite(inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    corrected = correct(*inputs)
    _, scale = native.sign_accumulate(*inputs)
    assert scale.dtype == torch.float32
    assert scale.shape == ()
    assert bool(scale.isfinite()) is bool(corrected.isfinite().all())
    if scale.isfinite():
        exact = math.fsum(corrected.double().abs().tolist()) / max(1, corrected.numel())
        assert scale.item() == pytest.approx(exact, rel=1e-7, abs=2.0**-149)


@given(steps=st.data(), inputs=gradients(), in_place=st.booleans())
@examples(150)
def test_keeping_corrected_sends_the_same_bits(
    steps: st.DataObject, inputs: tuple[torch.Tensor, torch.Tensor], in_place: bool
) -> None:
    """Three steps, each as sign_accumulate() would do it; what is kept says what the residual is."""
    grad, residual = inputs
    kept, kept_scale = residual.clone(), torch.zeros(())
    for _ in range(3):
        bits, scale = native.sign_accumulate(grad, residual)
        out = None if in_place else torch.full_like(kept, 7.0)
        size = torch.zeros(bits.numel(), dtype=torch.uint8)
        found, found_scale = native.sign_accumulate_kept(
            grad, kept, kept_scale, out=out, into=(size, kept_scale) if in_place else None
        )
        assert torch.equal(found, bits)
        assert_same(found_scale.reshape(1), scale.reshape(1))
        kept, kept_scale = kept if out is None else out, found_scale
        grad = steps.draw(tensors(grad.dtype, grad.numel(), FINITE_KINDS))
    assert_same((kept.float() - kept_scale * signs(kept.float())).to(kept.dtype), residual)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), weight=st.sampled_from([1.0, 0.25, 1 / 3, -2.0]), as_tensor=st.sampled_from([None, (), (1,)]))
@examples(100)
def test_sign_add(dtype: torch.dtype, data: st.DataObject, weight: float, as_tensor: tuple[int, ...] | None) -> None:
    source = data.draw(tensors(torch.float32, kinds=FINITE_KINDS))
    out = data.draw(tensors(dtype, source.numel()))
    scale = torch.tensor(data.draw(st.sampled_from([0.0, 1.5, 1e-3])), dtype=torch.float32)
    expected = (out.float() + torch.tensor(weight) * scale * signs(source)).to(dtype)
    native.sign_add(packed(source), scale.item() if as_tensor is None else scale.reshape(as_tensor), out, weight)
    assert_same(out, expected)


def test_bits_beyond_the_last_element_are_zero_and_ignored() -> None:
    bits, _ = native.sign_accumulate(torch.ones(3), torch.zeros(3))
    assert bits.tolist() == [0b111]
    out = torch.zeros(5)
    native.sign_add(torch.tensor([0b11111111, 0], dtype=torch.uint8)[:1], 2.0, out[:3], 1.0)
    assert out.tolist() == [2.0, 2.0, 2.0, 0.0, 0.0]


def test_order_of_bits() -> None:
    corrected = torch.tensor([1.0, -1.0, 0.0, -0.0, -1.0, torch.nan, -torch.inf, -1.0, -1.0, 1e-45])
    bits, _ = native.sign_accumulate(corrected, torch.full((10,), -0.0))
    assert bits.tolist() == [0b00101101, 0b10]
