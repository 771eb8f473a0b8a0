"""What the tests of the native kernels share: inputs that look for trouble, and how results are compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hvd_compress import native

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = [(torch.float32, torch.float32)] + [(g, r) for g in DTYPES[1:] for r in (torch.float32, g)]
"""(dtype of the gradient, dtype of the residual): the residual is fp32 or of the gradient's own dtype."""

SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from(
        [63, 64, 65, 4095, 4096, 4097, 8193, 16_384, 20_011, 70_001]
    ),  # around bytes, vectors, blocks, samples
)
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def examples(count: int) -> Callable[[Any], Any]:
    """Decorate a property test to run on so many inputs, or a share of them at each level, however long it takes."""
    share = float(os.environ.get("HVD_COMPRESS_TEST_EXAMPLES", 0.6 / len(native.simd_levels())))
    return settings(
        max_examples=max(2, round(share * count)), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def _normal(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(n, generator=generator)


def _few_values(n: int, generator: torch.Generator) -> torch.Tensor:
    """Many ties, of both signs and around the middle of the order."""
    return torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 1.0078125])[torch.randint(7, (n,), generator=generator)]


def _all_equal(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.full((n,), float(torch.randn((), generator=generator)))


def _signed_zeros(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.tensor([0.0, -0.0])[torch.randint(2, (n,), generator=generator)]


def _denormals(n: int, generator: torch.Generator) -> torch.Tensor:
    """Below the normal numbers of fp32 and bf16, of fp16, or among the least of them."""
    exponents = torch.randint(0, 26, (n,), generator=generator)
    least = torch.tensor([2.0**-149, 2.0**-133, 2.0**-24])[torch.randint(3, (n,), generator=generator)]
    return torch.ldexp(least, exponents) * torch.sign(torch.randn(n, generator=generator))


def _wide(n: int, generator: torch.Generator) -> torch.Tensor:
    """Magnitudes over the whole range, so that adding loses bits and fp16 overflows."""
    return torch.randn(n, generator=generator) * torch.exp2(torch.randint(-60, 60, (n,), generator=generator).float())


def _any_bits(n: int, generator: torch.Generator) -> torch.Tensor:
    """NaN of every payload among them."""
    return torch.randint(-(2**31), 2**31, (n,), generator=generator).to(torch.int32).view(torch.float32)


def _non_finite(n: int, generator: torch.Generator) -> torch.Tensor:
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0, 65504.0, 0.0])
    return special[torch.randint(6, (n,), generator=generator)]


KINDS = (_normal, _few_values, _all_equal, _signed_zeros, _denormals, _wide, _any_bits, _non_finite)
FINITE_KINDS = KINDS[:6]
"""Finite in fp32; fp16 may overflow to Inf."""


@st.composite
def tensors(draw: st.DrawFn, dtype: torch.dtype, n: int | None = None, kinds: Any = KINDS) -> torch.Tensor:
    """A tensor (n,), perhaps a view that starts in the middle of a vector register's worth of memory."""
    n = draw(SIZES) if n is None else n
    offset = draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    buffer: torch.Tensor = draw(st.sampled_from(kinds))(n + offset, generator)
    return buffer.to(dtype)[offset:]


@st.composite
def gradients(draw: st.DrawFn, kinds: Any = KINDS) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient and a residual (n,) of any pair of dtypes."""
    grad_dtype, residual_dtype = draw(st.sampled_from(PAIRS))
    n = draw(SIZES)
    return draw(tensors(grad_dtype, n, kinds)), draw(tensors(residual_dtype, n, kinds))


@st.composite
def counts(draw: st.DrawFn, n: int) -> int:
    """A k in 0..n, its ends included often."""
    return draw(st.one_of(st.sampled_from(sorted({0, min(1, n), max(n - 1, 0), n})), st.integers(0, n)))


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns of floats, as int64."""
    return x.view(_BITS[x.dtype]).long()


def magnitude_key(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns without their sign, as int64: ordered as magnitudes are, Inf above, and all NaN alike on top."""
    key = bits_of(x) & (0x7FFFFFFF if x.dtype == torch.float32 else 0x7FFF)
    return key.masked_fill(x.isnan(), 2**31)


def assert_same(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the bit, the sign of zero included; a NaN only has to be a NaN."""
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    differ = (bits_of(result) != bits_of(expected)) & ~(result.isnan() & expected.isnan())
    where = differ.nonzero().flatten().tolist()
    assert not where, f"differ at {where[:5]}: {result[where[:5]]} instead of {expected[where[:5]]}"


def correct(grad: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The reference of what every kernel with error feedback starts from."""
    return torch.add(residual, grad.to(residual.dtype))


OUTS = st.sampled_from(["residual", "residual named", "grad", "other"])


def place_out(which: str, grad: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the argument `out` of a kernel with error feedback, and the tensor where the result will be."""
    if which == "residual":
        return None, residual
    if which == "residual named":
        return residual, residual
    if which == "grad" and grad.dtype == residual.dtype:
        return grad, grad
    other = torch.full_like(residual, 7.0)
    return other, other


def assert_inputs_kept(
    out: torch.Tensor, now: tuple[torch.Tensor, torch.Tensor], before: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """The gradient and the residual are as they were, but for the one that is `out`."""
    for tensor, copy in zip(now, before, strict=True):
        if tensor is not out:
            assert_same(tensor, copy)


def sum_in_order(x: torch.Tensor) -> float:
    """The sum of x (n,) fp64 in the order that csrc/include/hvd_compress/sum.hpp fixes."""
    blocks = torch.split(x, 4096) if x.numel() else ()
    return _in_lanes(np.array([_in_lanes(block.numpy(), 64) for block in blocks]), 1024)


def _in_lanes(x: np.ndarray, count: int) -> float:
    """The sum of x (n,) fp64: each lane from its first element on, then lanes pairwise."""
    rows = np.append(x, np.zeros(-len(x) % count)).reshape(-1, count)
    lanes = np.zeros(count)
    for row in rows:
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])
