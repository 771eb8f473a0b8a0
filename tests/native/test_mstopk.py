"""MSTopk against the paper's algorithm, round by round on all elements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError
from tests.native.cases import (
    DTYPES,
    OUTS,
    assert_inputs_kept,
    assert_same,
    correct,
    counts,
    examples,
    gradients,
    place_out,
    sum_in_order,
    tensors,
)

GENERATOR = torch.Generator().manual_seed(3)
INPUTS = {
    "normal": torch.randn(5000, generator=GENERATOR),
    "heavy": torch.randn(5000, generator=GENERATOR) ** 7,
    "ties": torch.randint(-3, 4, (5000,), generator=GENERATOR).float(),
    "equal": torch.full((300,), -2.0),
    "zeros": torch.zeros(300),
    "one large": torch.cat([torch.full((299,), 1e-6), torch.tensor([5.0])]),
}


def as_in_the_paper(x: torch.Tensor, k: int, rounds: int) -> torch.Tensor:
    magnitudes = x.double().abs()
    mean, top = sum_in_order(magnitudes) / x.numel(), float(magnitudes.max())
    mean = min(mean, top)
    low, high, upper, lower = 0.0, 1.0, float("inf"), 0.0
    for _ in range(rounds):
        middle = low + (high - low) / 2
        threshold = mean + middle * (top - mean)
        if int((magnitudes >= threshold).sum()) <= k:
            high, upper = middle, threshold
        else:
            low, lower = middle, threshold
    sure = (magnitudes >= upper).nonzero().reshape(-1)
    rest = ((magnitudes < upper) & (magnitudes >= lower)).nonzero().reshape(-1)
    return torch.cat([sure, rest[: k - sure.numel()]]).sort().values.int()


@pytest.mark.parametrize("rounds", [1, 3, 25])
@pytest.mark.parametrize("k", [1, 7, 100, 150])
@pytest.mark.parametrize("name", INPUTS)
def test_it_selects_what_the_paper_does(name: str, k: int, rounds: int) -> None:
    x = INPUTS[name]
    indices, values = native.mstopk(x, k, rounds)
    assert torch.equal(indices, as_in_the_paper(x, k, rounds))
    assert torch.equal(values, x[indices.long()])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), rounds=st.integers(1, 48))
@examples(100)
def test_any_input(dtype: torch.dtype, data: st.DataObject, rounds: int) -> None:
    x = data.draw(tensors(dtype))
    k = data.draw(counts(x.numel()))
    indices, values = native.mstopk(x, k, rounds)
    if not 0 < k < x.numel() or not x.isfinite().all():
        assert torch.equal(indices, native.topk(x, k)[0])
    else:
        assert torch.equal(indices, as_in_the_paper(x, k, rounds))
    assert_same(values, x[indices.long()])


@given(inputs=gradients(), which=OUTS, data=st.data(), rounds=st.integers(1, 48))
@examples(150)
def test_of_the_sum_it_selects_the_same(
    inputs: tuple[torch.Tensor, torch.Tensor], which: str, data: st.DataObject, rounds: int
) -> None:
    grad, residual = inputs
    k = data.draw(counts(grad.numel()))
    before = (grad.clone(), residual.clone())
    argument, out = place_out(which, grad, residual)
    indices, values = native.mstopk_accumulate(grad, residual, k, rounds, out=argument)
    corrected = correct(*before)
    assert torch.equal(indices, native.mstopk(corrected, k, rounds)[0])
    assert_same(values, corrected[indices.long()].float())
    left = corrected.clone()
    left[indices.long()] = 0
    assert_same(out, left)
    assert_inputs_kept(out, inputs, before)


@pytest.mark.parametrize("rounds", [1, 2, 25])
@pytest.mark.parametrize("k", [40, 4000, 60_000])
def test_where_the_rounds_end_below_what_was_sampled(k: int, rounds: int) -> None:
    """So many elements that a sample is taken; after one round all elements down to the mean are within reach."""
    generator = torch.Generator().manual_seed(11)
    grad, residual = torch.randn(2, 70_001, generator=generator).pow(3).unbind()
    corrected, out = grad + residual, torch.empty(70_001)
    expected = as_in_the_paper(corrected, k, rounds)
    assert torch.equal(native.mstopk(corrected, k, rounds)[0], expected)
    assert torch.equal(native.mstopk_accumulate(grad.clone(), residual.clone(), k, rounds, out)[0], expected)
    corrected[expected.long()] = 0.0
    assert torch.equal(out, corrected)


def test_many_rounds_give_the_largest() -> None:
    x = INPUTS["normal"]
    assert torch.equal(native.mstopk(x, 50, rounds=48)[0], native.topk(x, 50)[0])


def test_the_ends_and_what_is_not_finite() -> None:
    x = torch.tensor([1.0, float("nan"), -3.0, 2.0])
    assert native.mstopk(x, 0)[0].numel() == 0
    assert native.mstopk(x, 4)[0].tolist() == [0, 1, 2, 3]
    assert native.mstopk(x, 2)[0].tolist() == [1, 2]
    with pytest.raises(ConfigError, match="rounds = 0"):
        native.mstopk(x, 2, rounds=0)
    for k in (-1, 5):
        with pytest.raises(ConfigError, match=f"k = {k} lies outside"):
            native.mstopk(x, k)
