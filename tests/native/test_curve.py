"""gain_curve against sorted squares in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError
from tests.native.cases import DTYPES, FINITE_KINDS, examples, tensors

RATIOS = (1e-4, 1e-3, 1e-2, 0.1, 0.5, 1)


def exact(x: torch.Tensor) -> torch.Tensor:
    """The share of the k largest, for k = 0 ... n."""
    magnitudes = torch.from_numpy(np.sort(x.float().abs().numpy())).flip(0)  # ten times faster than torch's sort
    mass = torch.cumsum(magnitudes.double().square(), 0)
    return torch.cat([torch.zeros(1, dtype=torch.float64), mass / mass[-1]])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@examples(100)
def test_every_k_is_within_one_per_cent(dtype: torch.dtype, data: st.DataObject) -> None:
    x = data.draw(tensors(dtype, kinds=FINITE_KINDS)).clamp(-1e4, 1e4)
    curve = native.gain_curve(x)
    n = x.numel()
    gains = curve.gain(torch.arange(n + 1))
    assert gains.dtype == torch.float64
    assert gains.shape == (n + 1,)
    if not x.float().any():
        assert (gains[1:] == 1).all()
    elif not _subnormal(x):
        torch.testing.assert_close(gains, exact(x), rtol=0.01, atol=0)


def _subnormal(x: torch.Tensor) -> bool:
    """Below the normal numbers of fp32 bins are wider than a factor of 1/256: nobody trains there."""
    return bool(x.float().abs().max() < 2.0**-100)


@pytest.mark.parametrize("spread", ["normal", "laplace", "heavy"])
def test_ratios_of_a_large_gradient(spread: str) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3_000_003, generator=generator)  # so many that not all are counted
    if spread == "laplace":
        x = x.sign() * torch.rand(x.numel(), generator=generator).log()
    if spread == "heavy":
        x = x**5
    ks = torch.tensor([int(ratio * x.numel()) for ratio in RATIOS])
    torch.testing.assert_close(native.gain_curve(x).gain(ks), exact(x)[ks], rtol=0.01, atol=0)


def patterned(pattern: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A gradient (1310720,) such as those of embeddings, or such as a sample could fall in step with."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1_310_720, generator=generator)
    if pattern.startswith("rows"):
        rows = x.view(-1, int(pattern.split()[-1]))
        rows *= torch.rand(rows.shape[0], 1, generator=generator) < 0.1
    elif pattern == "every fourth vector":
        x.view(-1, 4, 16)[:, seed] *= 0.01
    else:
        x.view(-1, 4)[:, seed] *= 0.01
    return x.to(dtype)


@functools.cache
def exact_gains(pattern: str, dtype: torch.dtype, seed: int, ks: tuple[int, ...]) -> torch.Tensor:
    """The same for every level, and it takes longer than what is tested."""
    return exact(patterned(pattern, dtype, seed))[list(ks)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", ["rows of 16", "rows of 32", "every fourth vector", "every fourth element"])
def test_patterns_in_a_large_gradient(pattern: str, dtype: torch.dtype) -> None:
    for seed in range(4):
        x = patterned(pattern, dtype, seed)
        ks = tuple(int(ratio * x.numel()) for ratio in RATIOS)
        curve = native.gain_curve(x)
        torch.testing.assert_close(curve.gain(ks), exact_gains(pattern, dtype, seed, ks), rtol=0.01, atol=0)
        assert int(curve.counts[-1]) == pytest.approx(x.numel(), rel=0.01)


def test_a_ratio_is_not_a_number_of_elements() -> None:
    with pytest.raises(ConfigError, match="is not a number of elements; for a ratio pass int"):
        native.gain_curve(torch.ones(5)).gain(0.01)  # type: ignore[arg-type]


def test_the_ends() -> None:
    curve = native.gain_curve(torch.tensor([3.0, -4.0, 0.0]))
    assert curve.gain(0) == 0
    assert curve.gain([2, 3, 99]).tolist() == [1, 1, 1]
    assert curve.gain(1) == pytest.approx(16 / 25, rel=0.01)
    assert native.gain_curve(torch.empty(0)).gain(0) == 0
    assert native.gain_curve(torch.tensor([3.4e38, 1.0])).gain(1) == pytest.approx(1.0)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_without_a_finite_norm_there_is_no_share(value: float) -> None:
    assert native.gain_curve(torch.tensor([1.0, value, 2.0])).gain(1).isnan()
