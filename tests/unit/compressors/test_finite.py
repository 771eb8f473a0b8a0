"""Whether a result is finite, also where sums of its elements are not."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.compressors.finite import all_finite, scale_finite

NUMEL = (1 << 18) + 2
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1000, NUMEL - 1])
def test_one_element_is_found(bad: float, where: int, dtype: torch.dtype) -> None:
    tensor = torch.ones(NUMEL, dtype=dtype)
    assert all_finite(tensor)
    tensor[where] = bad
    assert not all_finite(tensor)
    assert not scale_finite(tensor, 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_overflows_says_nothing(dtype: torch.dtype) -> None:
    tensor = torch.full((NUMEL,), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite(tensor)
    assert scale_finite(tensor, 1.0)


def test_infinities_of_both_signs_are_found() -> None:
    assert not all_finite(torch.tensor([math.inf, -math.inf]))


@pytest.mark.parametrize("numel", [0, 1, NUMEL])
def test_scaling_has_the_bits_of_a_product(numel: int) -> None:
    tensor = torch.randn(numel)
    expected = tensor * (1 / 3)
    assert scale_finite(tensor, 1 / 3)
    assert torch.equal(tensor, expected)
