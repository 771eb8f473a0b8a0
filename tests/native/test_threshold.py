"""threshold_select against a comparison in torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError
from hvd_compress.native import module, selection
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


def test_scratch_memory_of_a_device_is_not_kept_for_kernels_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be handed an address that is not theirs."""
    elsewhere = SimpleNamespace(
        threshold_workspace_bytes=lambda numel: 10**6,
        threshold_count=lambda *arguments: torch.tensor(0),
        threshold_select=lambda *arguments: None,
    )
    with monkeypatch.context() as patch:
        patch.setattr(selection, "on", lambda tensor: elsewhere)
        patch.setattr(selection, "prepare", lambda size, like: torch.empty(size, dtype=torch.uint8, device="meta"))
        native.threshold_select(torch.ones(3), 1.0)
    assert module.prepare(1).device.type == "cpu"
