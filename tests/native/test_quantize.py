"""Stochastic quantisation against a reference in numpy, random numbers included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError, MismatchError
from tests.native.cases import (
    OUTS,
    assert_inputs_kept,
    assert_same,
    correct,
    examples,
    gradients,
    place_out,
    sum_in_order,
    tensors,
)

KEYS = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1), "step": st.integers(0, 2**32 - 1), "bucket": st.integers(0, 2**32 - 1)}
)
WIDTHS = st.sampled_from([2, 4, 8])
NORMS = st.sampled_from(["l2", "max"])


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Seven rounds, on columns of four words."""
    low = np.uint64(0xFFFFFFFF)
    words, keys = counter.astype(np.uint64), [np.uint64(word) for word in key]
    for _ in range(7):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        high = np.uint64(32)
        words = np.stack(
            [second >> high ^ words[1] ^ keys[0], second & low, first >> high ^ words[3] ^ keys[1], first & low]
        )
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & low, (keys[1] + np.uint64(0xBB67AE85)) & low]
    return words


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, (0, 0), [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A],
        ),
    ],
)
def test_the_reference_gives_the_known_answers_of_random123(
    counter: list[int], key: tuple[int, int], words: list[int]
) -> None:
    assert philox(np.array(counter), key).tolist() == words


def random_bits(n: int, seed: int, step: int, bucket: int) -> torch.Tensor:
    """In the order that csrc/include/hvd_compress/quantize.hpp fixes."""
    i = np.arange(n, dtype=np.uint64)
    block = i // np.uint64(128) * np.uint64(16) + i % np.uint64(16)
    counter = np.stack([block, block >> np.uint64(32), np.full_like(i, step), np.full_like(i, bucket)])
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    word = words[(i // np.uint64(16) % np.uint64(4)).astype(int), i.astype(int)]
    half = word >> np.uint64(16) * (i // np.uint64(64) % np.uint64(2)) & np.uint64(0xFFFF)
    return torch.from_numpy(half.astype(np.int64))


def norm_of(x: torch.Tensor, kind: str) -> torch.Tensor:
    if x.numel() == 0:
        return torch.tensor(0.0)
    return x.float().abs().max() if kind == "max" else torch.tensor(sum_in_order(x.double().square()) ** 0.5).float()


def unpacked(packed: torch.Tensor, bits: int, n: int) -> torch.Tensor:
    rows = np.unpackbits(packed.numpy(), bitorder="little")[: n * bits].reshape(n, bits).astype(np.int64)
    weights = 2 ** np.arange(bits)
    weights[-1] *= -1
    return torch.from_numpy(rows @ weights)


@given(inputs=gradients(), which=OUTS, bits=WIDTHS, norm=NORMS, key=KEYS)
@examples(250)
def test_numbers_norm_and_rest(
    inputs: tuple[torch.Tensor, torch.Tensor], which: str, bits: int, norm: str, key: dict[str, int]
) -> None:
    grad, residual = inputs
    n, levels = grad.numel(), 2 ** (bits - 1) - 1
    before = (grad.clone(), residual.clone())
    argument, out = place_out(which, grad, residual)
    packed, size = native.quantize_accumulate(grad, residual, bits, norm=norm, out=argument, **key)
    corrected = correct(*before)
    expected = norm_of(corrected, norm)
    assert_same(size.reshape(1), expected.reshape(1))
    assert packed.numel() == math.ceil(n * bits / 8)
    q = unpacked(packed, bits, n)
    scale = torch.tensor(65536.0 * levels) / size
    if size > 0 and size.isfinite() and scale.isfinite():
        x = corrected.float()
        units = (x.abs() * scale).floor().clamp(max=65536.0 * levels).long()
        whole = units + random_bits(n, **key) >> 16
        assert torch.equal(q, torch.where(x < 0, -whole, whole))
        assert_same(out, (x - q.float() * (size / levels)).to(out.dtype))
    else:
        assert not q.any()
        assert_same(out, corrected)
    assert_inputs_kept(out, inputs, before)


@given(data=st.data(), bits=WIDTHS, weight=st.sampled_from([1.0, 0.25, -1 / 3]), size=st.sampled_from([0.0, 3.3]))
@examples(100)
def test_unpack_and_add(data: st.DataObject, bits: int, weight: float, size: float) -> None:
    out = data.draw(tensors(data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))))
    n = out.numel()
    packed = torch.randint(0, 256, (math.ceil(n * bits / 8),), dtype=torch.uint8)
    sent = torch.tensor(weight) * (unpacked(packed, bits, n).float() * (torch.tensor(size) / (2 ** (bits - 1) - 1)))
    expected = (out.float() + sent).to(out.dtype)
    native.quantize_add(packed, size, out, bits, weight)
    assert_same(out, expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_what_is_sent_is_right_on_average(bits: int, norm: str) -> None:
    """Sixty thousand draws of each of three values; five standard deviations of a number between two levels."""
    n = 60_000
    x = torch.tensor([0.3, -0.7, 1.0]).repeat(n)
    packed, size = native.quantize_accumulate(x, torch.zeros_like(x), bits, norm=norm, seed=1, step=2, bucket=3)
    sent = torch.zeros_like(x)
    native.quantize_add(packed, size, sent, bits, 1.0)
    unit = float(size) / (2 ** (bits - 1) - 1)
    tolerance = 5 * unit / 2 / math.sqrt(n)
    torch.testing.assert_close(sent.view(n, 3).mean(0), x[:3], rtol=0, atol=tolerance)


def test_another_key_draws_other_numbers() -> None:
    x = torch.full((4096,), 0.5)
    keys = [(1, 0, 0), (2, 0, 0), (1 << 32, 0, 0), (1, 1, 0), (1, 0, 1)]
    x[0] = 1.0  # or every element is the largest, and nothing is left to chance
    results = [
        native.quantize_accumulate(x, torch.zeros_like(x), 4, seed=seed, step=step, bucket=bucket, norm="max")[0]
        for seed, step, bucket in keys
    ]
    assert len({bytes(result.numpy()) for result in results}) == len(keys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 3}, "bits = 3"),
        ({"norm": "l1"}, "unknown norm 'l1'; known are l2, max"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**64}, "seed"),
    ],
    ids=str,
)
def test_bad_settings(arguments: dict[str, object], words: str) -> None:
    usual = {"bits": 8, "seed": 0, "step": 0, "bucket": 0}
    with pytest.raises(ConfigError, match=words):
        native.quantize_accumulate(torch.ones(3), torch.ones(3), **{**usual, **arguments})


def test_a_length_that_does_not_fit() -> None:
    with pytest.raises(MismatchError, match="2 bytes for 5 elements of 4 bits, expected 3"):
        native.quantize_add(torch.zeros(2, dtype=torch.uint8), 1.0, torch.ones(5), 4, 1.0)
