"""threshold_select and threshold_accumulate against a comparison in torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError
from hvd_compress.native import module, selection
from tests.native.cases import DTYPES, assert_inputs_kept, assert_same, examples, tensors

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


def accumulated(
    grad: torch.Tensor, residual: torch.Tensor, velocity: torch.Tensor | None, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return corrected and velocity_out, operation by operation."""
    added = grad.float() if velocity is None else (velocity * factor).add_(grad)
    return residual + added, added


def check_accumulate(
    grad: torch.Tensor, residual: torch.Tensor, velocity: torch.Tensor | None, factor: float, tau: float
) -> int:
    """Compare threshold_accumulate() with accumulated(); return how many elements it has selected."""
    before = (grad.clone(), residual.clone(), None if velocity is None else velocity.clone())
    out, velocity_out = torch.full_like(residual, 7.0), torch.full_like(residual, 7.0)
    momentum = None if velocity is None else native.Momentum(factor, velocity, velocity_out)
    indices, values = native.threshold_accumulate(grad, residual, tau, out, momentum)
    corrected, added = accumulated(grad, residual, velocity, factor)
    expected = ~(corrected.abs() < tau)
    assert torch.equal(indices, expected.nonzero().reshape(-1).int())
    assert_same(values, corrected[expected])
    assert_same(out, corrected.masked_fill(expected, 0.0))
    if velocity is not None:
        assert before[2] is not None
        assert_same(velocity_out, added.masked_fill(expected, 0.0))
        assert_same(velocity, before[2])
    assert_inputs_kept(out, (grad, residual), before[:2])
    return indices.numel()


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), tau=TAUS, factor=st.sampled_from([0.0, 0.9, 0.5, 1e30]), fed=st.booleans())
@examples(150)
def test_with_feedback_it_is_what_a_comparison_finds(
    dtype: torch.dtype, data: st.DataObject, tau: float, factor: float, fed: bool
) -> None:
    grad = data.draw(tensors(dtype))
    residual = data.draw(tensors(torch.float32, grad.numel()))
    velocity = data.draw(tensors(torch.float32, grad.numel())) if fed else None
    check_accumulate(grad, residual, velocity, factor, tau)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(("tau", "least"), [(2.5, 1), (0.01, 2_200_000)])
def test_memory_that_is_written_past_the_caches(fed: bool, tau: float, least: int) -> None:
    """So many elements that this pays; and more found than the workspace keeps."""
    generator = torch.Generator().manual_seed(5)
    grad, residual, velocity = torch.randn(3, 2_300_005, generator=generator).unbind()
    found = check_accumulate(grad.clone(), residual.clone(), velocity.clone() if fed else None, 0.9, tau)
    assert least <= found < grad.numel()


def test_nan_is_no_threshold() -> None:
    with pytest.raises(ConfigError, match="tau is NaN"):
        native.threshold_select(torch.ones(3), float("nan"))
    with pytest.raises(ConfigError, match="tau is NaN"):
        native.threshold_accumulate(torch.ones(3), torch.ones(3), float("nan"), torch.ones(3))


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
