"""Majority vote: the sign that most ranks have, whatever the path; zeros and ties take turns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Input, chunked
from hvd_compress.engines import wire
from hvd_compress.errors import PayloadError
from hvd_compress.papers.family.signsgd import SignSGD
from hvd_compress.payload import Payload
from tests.covering import covering
from tests.exchanges import NUMELS, PATHS, Draw, normal, step


def turns(numel: int, first: int) -> np.ndarray:
    return np.where((np.arange(numel) + first) % 2 == 0, 1, -1)


def vote(gradients: list[torch.Tensor], number: int) -> np.ndarray:
    """Algorithm 1 of Bernstein et al. 2019 on whole tensors, with turns in the place of a sign of zero."""
    total = np.zeros(gradients[0].numel(), dtype=int)
    for rank, gradient in enumerate(gradients):
        signs = np.sign(gradient.double().numpy()).astype(int)
        total += np.where(signs == 0, turns(signs.size, number + rank), signs)
    return np.where(total == 0, turns(total.size, number), np.sign(total))


def with_zeros(numel: int) -> Draw:
    """A third of them zeros of either sign."""
    values = torch.tensor([-1e-3, -1e30, 0.0, -0.0, 1e-30, 2.0])
    return lambda rank: values[torch.randint(6, (numel,), generator=torch.Generator().manual_seed(rank))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_the_result_is_the_majority_by_every_path(size: int, path: str, dtype: torch.dtype) -> None:
    for numel in NUMELS:
        for number in (0, 1):
            draw = with_zeros(numel) if dtype == torch.float32 else normal(numel)
            expected = torch.from_numpy(vote([draw(rank).to(dtype) for rank in range(size)], number)).to(dtype)
            for seen in step(SignSGD(), path, size, draw, dtype, number):
                assert seen.finite
                assert torch.equal(seen.result, expected)


@pytest.mark.parametrize("path", PATHS)
def test_chunks_change_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = step(SignSGD(), path, 3, with_zeros(1000))[0].result
    monkeypatch.setattr(chunked, "CHUNK", 128)
    assert torch.equal(step(SignSGD(), path, 3, with_zeros(1000))[0].result, expected)


@pytest.mark.parametrize("scale", [1.0, 1 / 12, 2.0**-140])
def test_no_scale_makes_a_difference(scale: float) -> None:
    for path in PATHS:
        averages, others = (step(SignSGD(), path, 3, normal(100), scale=by)[0].result for by in (1 / 3, scale))
        assert torch.equal(averages, others)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_is_zero_everywhere_goes_nowhere_in_two_steps(size: int, path: str) -> None:
    first, second = (step(SignSGD(), path, size, lambda _: torch.zeros(65), number=n)[0].result for n in (4, 5))
    assert not (first + second).any()


@pytest.mark.parametrize("path", PATHS)
def test_a_tie_is_decided_in_turn(path: str) -> None:
    first, second = (
        step(SignSGD(), path, 2, lambda rank: torch.full((65,), 1.0 - 2 * rank), number=n)[0].result for n in (4, 5)
    )
    assert torch.equal(first, torch.from_numpy(turns(65, 0)).float())
    assert not (first + second).any()


@pytest.mark.parametrize(("bad", "value", "path"), covering(range(3), [math.nan, math.inf, -math.inf], PATHS))
def test_all_ranks_see_what_is_not_finite_on_one(bad: int, value: float, path: str) -> None:
    for place in (0, 100, 299):

        def draw(rank: int, place: int = place) -> torch.Tensor:
            gradient = torch.ones(300)
            gradient[place] = value if rank == bad else 1.0
            return gradient

        for seen in step(SignSGD(), path, 3, draw):
            assert not seen.finite
            assert seen.result[place].isnan()


def test_the_largest_numbers_are_finite() -> None:
    assert step(SignSGD(), "allgather", 2, lambda _: torch.full((300,), 3e38))[0].finite


@pytest.mark.parametrize("size", [2, 4])
def test_owners_send_one_bit_both_ways(size: int) -> None:
    numel = 1_000_000
    ranks = step(SignSGD(), "alltoall-allgather", size, normal(numel))
    assert sum(seen.sent_bytes for seen in ranks) / size <= wire.allreduce(4 * numel, size) * 1.01 / 32


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"bits": torch.zeros(9, dtype=torch.uint8)}, "9 bytes of signs and 1 flags for 64 elements, expected 8"),
        ({"flag": torch.ones(2)}, "8 bytes of signs and 2 flags"),
        ({"flag": torch.zeros(1)}, "a flag is 0.0"),
        ({"flag": torch.full((1,), torch.inf)}, "a flag is inf"),
    ],
)
def test_a_broken_payload_is_refused(tensors: dict[str, torch.Tensor], words: str) -> None:
    compressor, layout = SignSGD(), Layout.of(64)
    good = compressor.compress(torch.ones(64), layout)
    broken = Payload({**good.tensors, **tensors}, 64)
    work = Input(torch.ones(64), layout, 0, 0, 1.0)
    with pytest.raises(PayloadError, match=f"payload from rank 1: {words}"):
        compressor.write(work, [(slice(0, 64), [good, broken])])
    with pytest.raises(PayloadError, match=f"payload from rank 2: {words}"):
        compressor.sum_shard(work, slice(0, 64), [good, broken])
    with pytest.raises(PayloadError, match=words):
        compressor.add_to(torch.zeros(64), broken, 1.0, layout)
