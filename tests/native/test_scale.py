"""scale: the product to the bit, and the report on what is finite."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError
from tests.native.cases import assert_same, examples, tensors

FACTORS = st.sampled_from([0.5, 1.0, 1 / 3, -2.0, 0.0, 1e30, 1e-30, float("inf")])


@pytest.mark.parametrize("dtype", native.FLOATS)
@examples(100)
@given(data=st.data(), factor=FACTORS)
def test_product_is_that_of_torch(dtype: torch.dtype, data: st.DataObject, factor: float) -> None:
    x = data.draw(tensors(dtype))
    expected = x * factor
    assert bool(native.scale(x, factor)) is bool(expected.isfinite().all())
    assert_same(x, expected)


@pytest.mark.parametrize("dtype", native.FLOATS)
@given(n=st.integers(1, 70), where=st.integers(0, 69), value=st.sampled_from([torch.inf, -torch.inf, torch.nan]))
@examples(40)
def test_one_bad_element_anywhere_is_seen(dtype: torch.dtype, n: int, where: int, value: float) -> None:
    x = torch.ones(n, dtype=dtype)
    assert native.scale(x, 0.5)
    x[where % n] = value
    assert not native.scale(x, 0.5)


def test_nothing_beyond_the_end_is_written() -> None:
    memory = torch.ones(40)
    assert native.scale(memory[:33], 2.0)
    assert memory[:33].eq(2).all()
    assert memory[33:].eq(1).all()


def test_a_factor_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="factor must be a number"):
        native.scale(torch.ones(2), "half")  # type: ignore[arg-type]
