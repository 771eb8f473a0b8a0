"""1-bit SGD against the paper's algorithm on whole tensors, by every path; what is lost comes back."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.requantize import shards
from hvd_compress.compressors import Input, OneBit, chunked
from hvd_compress.compressors.onebit import row_sums
from hvd_compress.engines import wire
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload
from tests.covering import covering
from tests.exchanges import NUMELS, PATHS, normal, step, whole


def sent(corrected: torch.Tensor, block: int, means: int) -> torch.Tensor:
    """What stands for a tensor: Section 3 of Seide et al. 2014, blocks in the place of columns."""

    def mean(of: torch.Tensor) -> torch.Tensor:
        total = of.double().sum().float()  # exact for whole numbers
        return (total / max(1, of.numel())).bfloat16().float()

    parts = []
    for part in corrected.split(block) if corrected.numel() else ():
        above = part >= 0
        if means == 1:
            parts.append(torch.where(above, mean(part.abs()), -mean(part.abs())))
        else:
            parts.append(torch.where(above, mean(part[above]), mean(part[~above])))
    return torch.cat(parts) if parts else corrected


def by_all_gather(corrected: list[torch.Tensor], block: int, means: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sum of what ranks send, and what each has left."""
    all_sent = [sent(one, block, means) for one in corrected]
    total = torch.zeros_like(corrected[0])
    for one in all_sent:
        total = total + one
    return total, [one - gone for one, gone in zip(corrected, all_sent, strict=True)]


def by_owners(
    corrected: list[torch.Tensor], owned: list[slice], block: int, means: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The same where an owner adds its own as it is, and compresses the sum with what is left of it."""
    result, left = torch.zeros_like(corrected[0]), [torch.zeros_like(one) for one in corrected]
    for owner, shard in enumerate(owned):
        total = torch.zeros_like(result[shard])
        for rank, one in enumerate(corrected):
            gone = one[shard] if rank == owner else sent(one[shard], block, means)
            total = total + gone
            left[rank][shard] = one[shard] - gone
        result[shard] = sent(total, block, means)
        left[owner][shard] = total - result[shard]
    return result, left


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("compressor", [OneBit(64), OneBit(128, 1)])
def test_every_path_follows_the_paper(compressor: OneBit, size: int, path: str) -> None:
    block, means = compressor.block, compressor.means
    for numel in NUMELS:
        residual = lambda rank, numel=numel: whole(numel)(100 + rank)  # noqa: E731
        ranks = step(compressor, path, size, whole(numel), scale=1.0, residual=residual)
        corrected = [seen.corrected for seen in ranks]
        if path == "allgather":
            expected, left = by_all_gather(corrected, block, means)
        else:
            nothing = [slice(0, 0)] * (size - 1)
            owned = [slice(0, numel), *nothing] if path == "gather-broadcast" else shards(numel, size, block)
            expected, left = by_owners(corrected, owned, block, means)
        for seen, rest in zip(ranks, left, strict=True):
            assert seen.finite
            torch.testing.assert_close(seen.result, expected, rtol=1e-6, atol=0)
            torch.testing.assert_close(seen.pending, rest, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("size", "path", "dtype"), covering([1, 3, 7], PATHS, [torch.float16, torch.bfloat16]))
def test_results_of_16_bits_are_the_same_on_all_ranks(size: int, path: str, dtype: torch.dtype) -> None:
    for numel in NUMELS:
        ranks = step(OneBit(64), path, size, normal(numel), dtype)
        for seen in ranks:
            assert seen.finite
            assert seen.result.dtype == dtype
            assert torch.equal(seen.result, ranks[0].result)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("compressor", [OneBit(), OneBit(64, 1)])
def test_what_is_not_applied_is_remembered(compressor: OneBit, path: str) -> None:
    for draw in (
        normal(1000),
        lambda rank: torch.where(torch.arange(1000) == 70, 1e30, 1e-3),
        lambda _: torch.zeros(9),
    ):
        ranks = step(compressor, path, 3, draw)
        corrected = sum(seen.corrected.double() for seen in ranks)
        left = sum(seen.pending.double() for seen in ranks)
        size = float(corrected.abs().max())
        torch.testing.assert_close(ranks[0].result.double() * 3 + left, corrected, rtol=1e-5, atol=2.0**-20 * size)


@pytest.mark.parametrize("path", PATHS)
def test_chunks_change_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = step(OneBit(64), path, 3, normal(1000))
    monkeypatch.setattr(chunked, "CHUNK", 128)
    for seen, before in zip(step(OneBit(64), path, 3, normal(1000)), expected, strict=True):
        assert torch.equal(seen.result, before.result)
        assert torch.equal(seen.pending, before.pending)


def test_a_sum_is_added_by_halves() -> None:
    """An order that every device has: neighbour by neighbour it would be 1, as 2^24 + 1 is 2^24 in fp32."""
    assert row_sums(torch.tensor([[2.0**24, 1.0, -(2.0**24), 1.0]])).tolist() == [2.0]


@pytest.mark.parametrize(("means", "value", "path"), covering([1, 2], [math.nan, math.inf, -math.inf], PATHS))
def test_all_ranks_see_what_is_not_finite_on_one(means: int, value: float, path: str) -> None:
    for bad in (0, 2):
        for place in (0, 100, 299):

            def draw(rank: int, bad: int = bad, place: int = place) -> torch.Tensor:
                gradient = torch.ones(300)
                gradient[place] = value if rank == bad else 1.0
                return gradient

            for seen in step(OneBit(64, means), path, 3, draw):
                assert not seen.finite
                assert not seen.result[place].isfinite()


@pytest.mark.parametrize("path", PATHS)
def test_sums_are_added_in_rank_order(path: str) -> None:
    """2^24 + 1 is 2^24 in fp32, so that 0 is left of 2^24 + 1 - 2^24, and 1 where an owner adds its own at the end."""
    ranks = step(
        OneBit(64),
        path,
        3,
        lambda rank: torch.full((192,), [2.0**24, 1.0, -(2.0**24)][rank]),
        scale=1.0,
        residual=lambda _: torch.zeros(192),
    )
    assert not ranks[0].result.any()


def test_bytes_are_few() -> None:
    numel, size = 1_000_000, 4
    ranks = step(OneBit(), "alltoall-allgather", size, normal(numel))
    assert sum(seen.sent_bytes for seen in ranks) / size <= wire.allreduce(4 * numel, size) * (1 + 1 / 16 + 0.01) / 32


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"bits": torch.zeros(9, dtype=torch.uint8)}, "9 bits for 64 elements, expected 8"),
        ({"means": torch.ones(1, dtype=torch.bfloat16)}, "1 means for 64 elements, expected 2"),
        ({"means": torch.tensor([-1.0, -1.0]).bfloat16()}, "a mean lies on the wrong side of zero"),
        ({"means": torch.tensor([1.0, 1.0]).bfloat16()}, "a mean lies on the wrong side of zero"),
    ],
)
def test_a_broken_payload_is_refused(tensors: dict[str, torch.Tensor], words: str) -> None:
    compressor, layout = OneBit(64), Layout.of(64)
    good = compressor.compress(torch.ones(64), layout)
    broken = Payload({**good.tensors, **tensors}, 64)
    work = Input(torch.ones(64), layout, 0, 0, 1.0, BucketState(Residual(torch.zeros(64), torch.zeros(64))))
    with pytest.raises(PayloadError, match=f"payload from rank 1: {words}"):
        compressor.write(work, [(slice(0, 64), [good, broken])])
    with pytest.raises(PayloadError, match=f"payload from rank 2: {words}"):
        compressor.sum_shard(work, slice(0, 64), [good, broken])
    with pytest.raises(PayloadError, match=words):
        compressor.add_to(torch.zeros(64), broken, 1.0, layout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"block": 96}, "block = 96 is not a power of two, 64 to 65536"),
        ({"block": 32}, "block = 32"),
        ({"block": 2**17}, "block = 131072"),
        ({"block": 64.0}, "block = 64.0"),
        ({"means": 3}, "means = 3"),
    ],
)
def test_bad_settings(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OneBit(**arguments)  # type: ignore[arg-type]
