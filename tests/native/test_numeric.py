"""Conversions between fp32 and the 16-bit types, seen through the kernels that convert and do nothing else."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import native
from tests.native.cases import assert_same

SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def _every_value(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def _widen(x: torch.Tensor) -> torch.Tensor:
    return native.take(x.clone(), torch.arange(x.numel(), dtype=torch.int32))


def _narrow(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.numel(), dtype=dtype)
    native.scatter_set(torch.arange(x.numel(), dtype=torch.int32), x, out, 1.0)
    return out


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_every_value_widens_exactly(dtype: torch.dtype) -> None:
    values = _every_value(dtype)
    assert_same(_widen(values), values.float())


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_every_value_comes_back(dtype: torch.dtype) -> None:
    values = _every_value(dtype)
    assert_same(_narrow(values.float(), dtype), values)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_halfway_rounds_to_even_and_its_neighbours_to_the_nearest(dtype: torch.dtype) -> None:
    values = _every_value(dtype).float()
    values = values[values.isfinite()].sort().values
    halfway = (values[1:] + values[:-1]) / 2
    for around in (halfway, halfway.nextafter(torch.tensor(torch.inf)), halfway.nextafter(torch.tensor(-torch.inf))):
        assert_same(_narrow(around, dtype), around.to(dtype))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_any_fp32_rounds_as_torch_rounds(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-(2**31), 2**31, (2_000_000,), generator=generator).to(torch.int32).view(torch.float32)
    assert_same(_narrow(values, dtype), values.to(dtype))
    overflow = torch.tensor([65519.996, 65520.0, -65520.0, 1e30, 3.4e38, torch.inf, -torch.inf, torch.nan, -0.0])
    assert_same(_narrow(overflow, dtype), overflow.to(dtype))
