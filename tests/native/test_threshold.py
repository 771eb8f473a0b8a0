"""threshold_select against a comparison in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError
from tests.native.cases import DTYPES, assert_same, examples, tensors

TAUS = st.one_of(
    st.sampled_from([0.0, -0.0, -1.0, 1.0, 2.0, 2.0**-149, 65504.0, float("inf"), float("-inf")]),
    st.floats(0, 4, width=32),
)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), tau=TAUS)
@examples(150)
def test_it_is_what_a_comparison_finds(dtype: torch.dtype, data: st.DataObject, tau: float) -> None:
    x = data.draw(tensors(dtype))
    indices, values = native.threshold_select(x, tau)
    expected = ~(x.float().abs() < tau)
    assert torch.equal(indices, expected.nonzero().reshape(-1).int())
    assert_same(values, x[expected])


def test_nan_is_no_threshold() -> None:
    with pytest.raises(ConfigError, match="tau is NaN"):
        native.threshold_select(torch.ones(3), float("nan"))
