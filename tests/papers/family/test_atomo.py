"""Spectral ATOMO: which triplets it draws, how often, and that the mean is right."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Input
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.papers.family.atomo import ATOMO, probabilities
from hvd_compress.payload import Payload

LAYOUT = Layout(("conv", "bias", "small", "dense"), ((16, 3, 3, 3), (16,), (2, 2), (30, 20)))
ONE = Layout(("w",), ((12, 9),))


def draw(seed: int, layout: Layout = LAYOUT) -> torch.Tensor:
    return torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed))


def sent(
    compressor: ATOMO, gradient: torch.Tensor, layout: Layout = LAYOUT, step: int = 0, bucket: int = 0, rank: int = 0
) -> Payload:
    return compressor.encode(Input(gradient, layout, step, bucket, 1.0, rank=rank))


@pytest.mark.parametrize(
    ("s", "budget", "expected"),
    [
        ([4.0, 3.0, 2.0, 1.0], 1, [0.4, 0.3, 0.2, 0.1]),
        ([4.0, 3.0, 2.0, 1.0], 2, [0.8, 0.6, 0.4, 0.2]),
        ([10.0, 1.0, 1.0, 1.0], 2, [1.0, 1 / 3, 1 / 3, 1 / 3]),
        ([100.0, 10.0, 1.0, 1.0], 3, [1.0, 1.0, 0.5, 0.5]),  # two in turn are sent always
        ([4.0, 3.0, 2.0, 1.0], 4, [1.0, 1.0, 1.0, 1.0]),
        ([5.0, 0.0, 0.0], 2, [1.0, 1.0, 0.0]),
        ([0.0, 0.0], 1, [1.0, 0.0]),
    ],
)
def test_probabilities_add_up_to_the_budget(s: list[float], budget: int, expected: list[float]) -> None:
    found = probabilities(torch.tensor(s, dtype=torch.float64), budget)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("budget", [1, 3, 7])
def test_no_other_probabilities_have_less_variance(budget: int) -> None:
    """Eq. of the paper: they minimise sum of s^2 / p; so does no small change that keeps their sum, and 0 < p <= 1."""
    generator = torch.Generator().manual_seed(budget)
    s = torch.rand(8, generator=generator, dtype=torch.float64).pow(3).sort(descending=True).values
    p = probabilities(s, budget)
    least = float((s.square() / p).sum())
    for i in range(8):
        for j in range(8):
            other = p.clone()
            other[i] += 1e-3
            other[j] -= 1e-3
            if i != j and other.max() <= 1 and other.min() > 0:
                assert float((s.square() / other).sum()) > least


@pytest.mark.parametrize("rank", [1, 3])
def test_the_mean_is_right(rank: int) -> None:
    """Over 2000 steps each singular value is right to 5 standard deviations: wrong with one seed in 100,000, at most.

    In the basis of singular vectors what is sent is diagonal: s / p where a triplet is drawn, else 0.
    """
    compressor, gradient, steps = ATOMO(rank, min_compression_rate=1.0), draw(3, ONE), 2000
    u, s, vh = torch.linalg.svd(gradient.view(12, 9).double(), full_matrices=False)
    total = torch.zeros(108, dtype=torch.float64)
    for step in range(steps):
        total += compressor.decompress(sent(compressor, gradient, ONE, step), ONE)
    mean = u.T @ (total / steps).view(12, 9) @ vh.T
    p = probabilities(s, rank)
    deviation = s * ((1 - p) / p / steps).sqrt()
    assert ((mean.diagonal() - s).abs() <= 5 * deviation + 1e-4).all()
    assert (deviation > 1e-2).sum() >= 8, "most of them are drawn by chance"
    assert (mean - mean.diagonal().diag()).abs().max() < 1e-4


def test_it_sends_so_many_different_triplets() -> None:
    compressor, gradient = ATOMO(3, min_compression_rate=1.0), draw(3, ONE)
    for step in range(50):
        values = sent(compressor, gradient, ONE, step)["values"]
        assert values.numel() == 3 * (12 + 9)
        right = values[36:].view(3, 9)
        torch.testing.assert_close(right @ right.T, torch.eye(3), rtol=0, atol=1e-5)


def test_wire_is_what_is_sent() -> None:
    for compressor in (ATOMO(2), ATOMO(1), ATOMO(4, min_compression_rate=100.0)):
        (round_,) = compressor.wire(LAYOUT)
        assert sent(compressor, draw(0)).wire_bytes == round_.nbytes
        assert round_.fixed
        assert round_.sum_dtype is None
    assert ATOMO(2).wire(LAYOUT)[0].nbytes == 4 * (2 * (16 + 27) + 2 * (30 + 20) + 16 + 4)


def test_vectors_and_small_matrices_are_sent_as_they_are() -> None:
    gradient = draw(0)
    found = ATOMO(2).decompress(sent(ATOMO(2), gradient), LAYOUT)
    assert torch.equal(found[432:452], gradient[432:452])
    assert not torch.equal(found[:432], gradient[:432])


def test_a_matrix_of_low_rank_is_sent_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    layout, compressor = Layout.of((40, 30)), ATOMO(3)
    for step in range(5):
        found = compressor.decompress(sent(compressor, matrix.reshape(-1), layout, step), layout)
        torch.testing.assert_close(found.view(40, 30), matrix, rtol=1e-3, atol=1e-3)


def test_draws_depend_on_seed_step_bucket_rank_and_name() -> None:
    gradient = draw(3, ONE)
    make = ATOMO(1, min_compression_rate=1.0)
    layouts = [Layout((name,), ((12, 9),)) for name in ("layer1.0.conv1", "layer1.0.conv2")]

    def series(**place: int) -> list[torch.Tensor]:
        return [sent(make, gradient, ONE, **{"step": s, **place})["values"] for s in range(20)]

    def differ(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
        return any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))

    plain = series()
    assert not differ(plain, series())
    assert differ(plain, plain[1:] + plain[:1])
    assert differ(plain, series(bucket=1))
    assert differ(plain, series(rank=1))
    seeded = ATOMO(1, seed=1, min_compression_rate=1.0)
    assert differ(plain, [sent(seeded, gradient, ONE, s)["values"] for s in range(20)])
    assert differ(*([sent(make, gradient, layout, s)["values"] for s in range(20)] for layout in layouts))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_no_scale_stops_it(scale: float) -> None:
    gradient = draw(3, ONE) * scale
    found = ATOMO(9, min_compression_rate=0.1).decompress(sent(ATOMO(9, min_compression_rate=0.1), gradient, ONE), ONE)
    torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 440])
def test_what_is_not_finite_reaches_the_result(bad: float, where: int) -> None:
    gradient = draw(0)
    gradient[where] = bad
    assert ATOMO(2).decompress(sent(ATOMO(2), gradient), LAYOUT).isnan().all()


def test_a_payload_of_another_length_names_its_rank() -> None:
    own = sent(ATOMO(2), draw(0))
    other = Payload({"values": own["values"][1:]}, LAYOUT.numel)
    with pytest.raises(PayloadError, match=r"payload from rank 1: .* values instead of"):
        ATOMO(2).sum_into(torch.zeros(LAYOUT.numel), [own, other], 0.5, LAYOUT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 0}, "rank = 0"),
        ({"rank": 1.5}, "rank = 1.5"),
        ({"seed": -1}, "seed = -1"),
        ({"min_compression_rate": -1}, "min_compression_rate = -1"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ATOMO(**arguments)  # type: ignore[arg-type]
