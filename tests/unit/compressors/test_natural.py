"""Natural compression: one of the two neighbouring powers of two, right on average, and the same by every path."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Input, Natural, chunked
from hvd_compress.compressors.chunked import Origin
from hvd_compress.engines import wire
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.payload import Payload
from tests.covering import covering
from tests.exchanges import NUMELS, PATHS, normal, step

SMALLEST, LARGEST = 2.0**-77, 2.0**48
DRAWS = 4000


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def sent(x: torch.Tensor, number: int = 0, compressor: Natural | None = None) -> torch.Tensor:
    """What one rank sends of x in a step."""
    compressor = compressor or Natural()
    payload = compressor.encode_shard(Input(x, Layout.of(x.numel()), number, 0, 1.0), slice(0, x.numel()), 0)
    return compressor.decompress(payload, Layout.of(x.numel()))


def magnitudes() -> torch.Tensor:
    """64 of either sign, from below the smallest power to the largest, mantissas of all sizes."""
    exponents = torch.linspace(-79, 47, 64).floor()
    return torch.ldexp(1 + torch.linspace(0, 0.99, 64), exponents) * torch.tensor([1.0, -1.0]).repeat(32)


def test_an_element_becomes_a_neighbouring_power_with_its_sign() -> None:
    """Definition 2.1 of Horvath et al. 2022, restated with frexp."""
    for number in range(20):
        x = magnitudes()
        below = [2.0 ** (math.frexp(abs(v))[1] - 1) if abs(v) >= SMALLEST else 0.0 for v in x.tolist()]
        above = [max(SMALLEST, 2 * power) for power in below]
        for v, found, low, high in zip(x.tolist(), sent(x, number).tolist(), below, above, strict=True):
            assert abs(found) in (low, high)
            assert found == 0 or math.copysign(1, found) == math.copysign(1, v)


def test_the_mean_is_the_gradient_and_pairs_are_independent() -> None:
    """4000 draws of 64 elements. Ups are binomial: each mean, and of neighbours each covariance, is within 6 standard
    deviations. Together this fails by chance with a probability below 128 * 2e-9 = 3e-7; the draws are the same in each
    run.
    """
    x = magnitudes()
    scale = torch.ldexp(torch.ones(64), torch.frexp(x).exponent - 1).clamp_min(SMALLEST)
    drawn = torch.stack([sent(x, number) / scale for number in range(DRAWS)]).double()
    wanted = (x / scale).double()
    up = wanted.abs() % 1  # the probability of the upper neighbour
    deviation = (up * (1 - up)).sqrt()
    error = (drawn.mean(0) - wanted).abs()
    assert bool((error <= 6 * deviation / math.sqrt(DRAWS) + 1e-9).all())
    centred = drawn - wanted
    covariance = (centred[:, :-1] * centred[:, 1:]).mean(0).abs()
    assert bool((covariance <= 6 * deviation[:-1] * deviation[1:] / math.sqrt(DRAWS) + 1e-9).all())


def test_powers_and_zeros_are_sent_as_they_are() -> None:
    x = values(0.0, -0.0, SMALLEST, -1.0, 0.5, LARGEST, -LARGEST)
    for number in range(20):
        assert torch.equal(sent(x, number), x)


def test_every_code_stands_for_what_becomes_that_code_again() -> None:
    codes = torch.arange(256).to(torch.uint8)
    compressor, found = Natural(), torch.empty(256)
    compressor.dequantise({"codes": codes}, found)
    again = torch.empty_like(codes)
    compressor.quantise(found, {"codes": again}, Origin(0, 0, 0, 0))
    finite = found.isfinite()
    assert (~finite).nonzero().flatten().tolist() == [127, 255]
    assert torch.equal(again[finite], codes[finite])
    assert bool(((again[~finite] & 127) == 127).all())


def test_what_is_too_large_is_not_finite() -> None:
    assert not sent(values(2.0**49, -3e38, math.inf, -math.inf, math.nan)).isfinite().any()
    assert sent(values(LARGEST, -LARGEST)).isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 3])
def test_the_mean_over_steps_is_that_of_ranks_by_every_path(size: int, path: str) -> None:
    """400 steps. Each rounding has at most 1/8 of the square as variance; 6 standard deviations, 16 elements: 4e-8."""
    gradients = [torch.linspace(1, 3, 16) * (rank + 1) for rank in range(size)]
    results = torch.stack(
        [step(Natural(seed=3), path, size, lambda r: gradients[r].clone(), number=n)[0].result for n in range(400)]
    )
    total = torch.stack(gradients).sum(0)
    first = sum(gradient.square() for gradient in gradients) / 8
    variance = (first + (total.square() + first) / 8) / size**2
    assert bool(((results.mean(0) - total / size).abs() <= 6 * (variance / 400).sqrt()).all())
    assert bool((results.std(0) > 0).any())


@pytest.mark.parametrize(("size", "path", "dtype"), covering([1, 3, 7], PATHS, [torch.float16, torch.bfloat16]))
def test_results_of_16_bits_are_the_same_on_all_ranks(size: int, path: str, dtype: torch.dtype) -> None:
    for numel in NUMELS:
        ranks = step(Natural(), path, size, normal(numel), dtype)
        for seen in ranks:
            assert seen.finite
            assert seen.result.dtype == dtype
            assert torch.equal(seen.result, ranks[0].result)


@pytest.mark.parametrize("path", PATHS)
def test_with_feedback_nothing_is_lost(path: str) -> None:
    ranks = step(Natural(error_feedback=True), path, 3, normal(1000))
    corrected = sum(seen.corrected.double() for seen in ranks)
    left = sum(seen.pending.double() for seen in ranks)
    assert left.abs().max() > 0.1
    torch.testing.assert_close(ranks[0].result.double() * 3 + left, corrected, rtol=0, atol=2.0**-20)


def test_what_is_drawn_depends_on_the_place_and_not_on_chunks_or_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    compressor, x = Natural(), torch.full((1000,), 1.5)
    work = Input(x, Layout.of(1000), 2, 1, 1.0, rank=1)
    whole = compressor.encode_shard(work, slice(0, 1000), 0)["codes"]
    assert torch.equal(compressor.encode_shard(work, slice(128, 700), 3)["codes"], whole[128:700])
    monkeypatch.setattr(chunked, "CHUNK", 64)
    assert torch.equal(compressor.encode_shard(work, slice(0, 1000), 0)["codes"], whole)


def test_what_is_sent_is_drawn_anew_for_each_seed_step_bucket_rank_and_sum() -> None:
    x = torch.full((64,), 1.5)

    def codes(seed: int = 0, number: int = 0, bucket: int = 0, rank: int = 0) -> bytes:
        work = Input(x, Layout.of(64), number, bucket, 1.0, rank=rank)
        return bytes(Natural(seed=seed).encode_shard(work, slice(0, 64), 0)["codes"].numpy())

    total = Natural().sum_shard(Input(x, Layout.of(64), 0, 0, 1.0), slice(0, 64), [])
    drawn = [codes(), codes(seed=1), codes(number=1), codes(bucket=1), codes(rank=1), bytes(total["codes"].numpy())]
    assert len(set(drawn)) == len(drawn)
    assert codes() == codes()


@pytest.mark.parametrize(("bad", "value", "path"), covering(range(3), [math.nan, math.inf, -math.inf], PATHS))
def test_all_ranks_see_what_is_not_finite_on_one(bad: int, value: float, path: str) -> None:
    for place in (0, 100, 299):

        def draw(rank: int, place: int = place) -> torch.Tensor:
            gradient = torch.ones(300)
            gradient[place] = value if rank == bad else 1.0
            return gradient

        for seen in step(Natural(), path, 3, draw):
            assert not seen.finite
            assert seen.result.isfinite().sum() == 299


def test_bytes_are_a_quarter() -> None:
    ranks = step(Natural(), "alltoall-allgather", 4, normal(1_000_000))
    assert sum(seen.sent_bytes for seen in ranks) / 4 <= wire.allreduce(4_000_000, 4) * 8.01 / 32


def test_a_broken_payload_is_refused() -> None:
    compressor, layout = Natural(), Layout.of(64)
    good = compressor.compress(torch.ones(64), layout)
    broken = Payload({"codes": torch.zeros(63, dtype=torch.uint8)}, 64)
    work, words = Input(torch.ones(64), layout, 0, 0, 1.0), "63 codes for 64 elements, expected 64"
    with pytest.raises(PayloadError, match=f"payload from rank 1: {words}"):
        compressor.write(work, [(slice(0, 64), [good, broken])])
    with pytest.raises(PayloadError, match=f"payload from rank 2: {words}"):
        compressor.sum_shard(work, slice(0, 64), [good, broken])
    with pytest.raises(PayloadError, match=words):
        compressor.add_to(torch.zeros(64), broken, 1.0, layout)


@pytest.mark.parametrize(
    ("arguments", "words"), [({"error_feedback": 1}, "error_feedback = 1"), ({"seed": -1}, "seed = -1")]
)
def test_bad_settings(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Natural(**arguments)  # type: ignore[arg-type]
