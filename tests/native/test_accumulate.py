"""accumulate: the sum to the bit, and the report on what is finite."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from tests.native.cases import OUTS, PAIRS, assert_inputs_kept, assert_same, correct, examples, gradients, place_out


@examples(200)
@given(inputs=gradients(), which=OUTS)
def test_sum_is_that_of_torch(inputs: tuple[torch.Tensor, torch.Tensor], which: str) -> None:
    grad, residual = inputs
    before = (grad.clone(), residual.clone())
    argument, out = place_out(which, grad, residual)
    finite = native.accumulate(grad, residual, out=argument)
    assert_same(out, correct(*before))
    assert bool(finite) is bool(correct(*before).isfinite().all())
    assert_inputs_kept(out, inputs, before)


@pytest.mark.parametrize("dtypes", PAIRS)
@given(n=st.integers(1, 70), where=st.integers(0, 69), value=st.sampled_from([torch.inf, -torch.inf, torch.nan]))
@examples(40)
def test_one_bad_element_anywhere_is_seen(
    dtypes: tuple[torch.dtype, torch.dtype], n: int, where: int, value: float
) -> None:
    grad, residual = torch.ones(n, dtype=dtypes[0]), torch.ones(n, dtype=dtypes[1])
    assert native.accumulate(grad, residual)
    grad[where % n] = value
    assert not native.accumulate(grad, residual)


@pytest.mark.parametrize("dtypes", PAIRS)
def test_a_sum_that_overflows_is_not_finite(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    largest = torch.finfo(dtypes[0]).max
    grad = torch.tensor([largest], dtype=dtypes[0])
    residual = torch.tensor([torch.finfo(dtypes[1]).max], dtype=dtypes[1])
    fits_fp32 = dtypes == (torch.float16, torch.float32)  # 65504 changes nothing of the largest fp32
    assert bool(native.accumulate(grad, residual)) is fits_fp32
