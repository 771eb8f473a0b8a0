"""Block quantisation: what each path loses, keeps, refuses and sends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work, build
from hvd_compress.collectives.requantize import shards
from hvd_compress.compression import Compression
from hvd_compress.compressors import BlockQuantizer, TopK
from hvd_compress.compressors.blocks import CODED_BITS, mixed
from hvd_compress.cost.paths import Path
from hvd_compress.engines import wire
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.errors import ConfigError, PayloadError, UnsupportedError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.native import BlockFormat
from hvd_compress.payload import Payload
from hvd_compress.policies.fixed import decide
from hvd_compress.request.request import Request
from tests.covering import covering
from tests.exchanges import NUMELS, PATHS, normal, step

KINDS = [BlockQuantizer(8), BlockQuantizer(4, stochastic=True), BlockQuantizer(2)]


@pytest.mark.parametrize(
    ("compressor", "size", "path", "dtype"), covering(KINDS, [1, 3, 7], PATHS, [torch.float16, torch.bfloat16])
)
def test_results_of_16_bits_are_the_same_on_all_ranks(
    compressor: BlockQuantizer, size: int, path: str, dtype: torch.dtype
) -> None:
    for numel in NUMELS:
        ranks = step(compressor, path, size, normal(numel), dtype)
        for seen in ranks:
            assert seen.finite
            assert seen.result.dtype == dtype
            assert torch.equal(seen.result, ranks[0].result)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("bits", [8, 4, 3, 2.5])
def test_what_is_not_applied_is_remembered(bits: float, size: int, path: str) -> None:
    """Over all ranks: what was applied and what is left make up what was corrected, to the rounding of fp32 sums."""
    for numel in NUMELS:
        ranks = step(BlockQuantizer(bits), path, size, normal(numel))
        corrected = sum(seen.corrected.double() for seen in ranks)
        left = sum(seen.pending.double() for seen in ranks)
        applied = ranks[0].result.double() * size
        # What is sent of few levels is larger, and so is the last place of sums.
        torch.testing.assert_close(applied + left, corrected, rtol=0, atol=2.0**-20 if bits >= 4 else 2.0**-19)


@pytest.mark.parametrize("bits", [8, 4, 3, 2.5])
def test_nothing_is_lost_at_either_end(bits: float) -> None:
    """Exactly: whole numbers are added without rounding, and halves as the scale, so that all bits can be followed."""
    size, numel = 4, 1000

    def draw(rank: int) -> torch.Tensor:
        return torch.randint(-100, 101, (numel,), generator=torch.Generator().manual_seed(rank)).float() * 100

    ranks = step(BlockQuantizer(bits), "alltoall-allgather", size, draw)
    corrected = sum(seen.corrected.double() for seen in ranks)
    left = sum(seen.pending.double() for seen in ranks)
    # The mean of four is a shift of the exponent, and every term has at most 24 bits.
    assert torch.equal(ranks[0].result.double() * size + left, corrected)
    for rank, part in enumerate(shards(numel, size, 64)):
        unit = corrected[part].abs().max() / BlockFormat(bits).most
        assert 0 < ranks[rank].pending[part].abs().max() < unit, "the owner keeps what the second rounding lost"


@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", CODED_BITS)
def test_coded_ones_lose_what_others_do_in_fewer_bytes(bits: float, stochastic: bool, path: str) -> None:
    """To the bit, in the result and in what is remembered; a short payload has padding to 16 bytes more, at most."""
    for numel in (*NUMELS, 40_000):
        plain, coded = (
            step(BlockQuantizer(bits, stochastic=stochastic, coded=flag), path, 3, normal(numel))
            for flag in (False, True)
        )
        for one, other in zip(plain, coded, strict=True):
            assert torch.equal(one.result, other.result)
            assert torch.equal(one.pending, other.pending)
            assert other.sent_bytes <= one.sent_bytes + 4 * 16
        if numel == 40_000:
            assert coded[0].sent_bytes < 0.93 * plain[0].sent_bytes


@pytest.mark.parametrize("block", [64, 256, 1024])
@pytest.mark.parametrize("bits", CODED_BITS)
def test_what_is_coded_is_priced_about_as_it_is(bits: float, block: int) -> None:
    """Of gradients; of normal values it takes somewhat more, in the largest blocks of two trainings less."""
    compressor, numel = BlockQuantizer(bits, block, coded=True), 200_000
    sent = compressor.compress(normal(numel)(1), Layout.of(numel)).wire_bytes
    assert 0.85 < sent / compressor.wire(Layout.of(numel))[0].priced < 1.25


def test_a_block_is_larger_where_it_is_coded() -> None:
    assert Compression.int3(coded=True).compressor == BlockQuantizer(3, 256, coded=True)
    assert Compression.int2(levels=5, coded=True).compressor == BlockQuantizer(2.5, 256, coded=True)
    assert Compression.int4(128, coded=True).compressor == BlockQuantizer(4, 128, coded=True)
    assert Compression.int4().compressor == BlockQuantizer(4)


def test_what_is_coded_differs_in_length() -> None:
    """So nothing that must know it beforehand may carry it."""
    coded = BlockQuantizer(3, coded=True)
    (round_,) = coded.wire(Layout.of(10**5))
    assert not round_.fixed
    assert round_.priced < BlockQuantizer(3).wire(Layout.of(10**5))[0].nbytes < round_.nbytes
    with pytest.raises(ConfigError, match="'gather-broadcast' needs payloads of one length"):
        decide(Request(coded, "gather-broadcast"), Layout.of(64), 3, InProcessWorld(3).engine(0).capabilities)
    with pytest.raises(ConfigError, match="coded=True with 8 bits"):
        BlockQuantizer(8, coded=True)


@pytest.mark.parametrize(("bad", "value", "path"), covering(range(3), [math.nan, math.inf, -math.inf], PATHS))
def test_all_ranks_see_what_is_not_finite_on_one(bad: int, value: float, path: str) -> None:
    for place in (0, 100, 299):

        def draw(rank: int, place: int = place) -> torch.Tensor:
            gradient = torch.ones(300)
            gradient[place] = value if rank == bad else 1.0
            return gradient

        for seen in step(BlockQuantizer(4), path, 3, draw):
            assert not seen.finite
            assert not seen.result.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bits", [8, 4, 3, 2.5, 2])
def test_zeros_denormals_and_one_huge_element(bits: float, path: str) -> None:
    for draw in (
        lambda rank: torch.zeros(130),
        lambda rank: torch.full((130,), 2.0**-140),
        lambda rank: torch.where(torch.arange(130) == 70, 1e30, 1e-3),
    ):
        ranks = step(BlockQuantizer(bits), path, 3, draw)
        corrected = sum(seen.corrected.double() for seen in ranks)
        left = sum(seen.pending.double() for seen in ranks)
        assert all(seen.finite for seen in ranks)
        torch.testing.assert_close(ranks[0].result.double() * 3 + left, corrected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("path", PATHS)
def test_random_rounding_is_right_on_average(path: str) -> None:
    """Over steps, ranks and both roundings; five standard deviations of the mean."""
    steps, size = 400, 3
    compressor = BlockQuantizer(2, stochastic=True, seed=5)
    values = torch.linspace(-1, 1, 64)
    results = [step(compressor, path, size, lambda rank: values.clone(), number=n)[0].result for n in range(steps)]
    assert len({bytes(result.numpy()) for result in results}) == steps
    # One rounding to -1, 0, 1 has a standard deviation of at most 1/2; the second to the largest sum, at most 1/2 too.
    torch.testing.assert_close(torch.stack(results).mean(0), values, rtol=2**-7, atol=5 * 0.75 / steps**0.5)


def test_an_owner_adds_in_rank_order() -> None:
    """Rank 1 of 3 has 1: 2^24 + 1 is 2^24 in fp32, so that 0 is left of 2^24 + 1 - 2^24, and 1 in any other order."""

    def draw(rank: int) -> torch.Tensor:
        return torch.full((192,), [2.0**24, 1.0, -(2.0**24)][rank])

    compressor = BlockQuantizer(2)  # sends equal elements as they are
    others = [compressor.compress(draw(rank)[64:128], Layout.of(64)) for rank in (0, 2)]
    state = BucketState(Residual(torch.zeros(192), torch.zeros(192)))
    work = Work(draw(1), Layout.of(192), 0, 0, 1.0, state, rank=1)
    shard = slice(64, 128)
    compressor.keep_shard(work, shard)
    total = compressor.sum_shard(work, shard, others)
    found = torch.empty(64)
    compressor.add_to(found.zero_(), total, 1.0, Layout.of(64))
    assert torch.equal(found, torch.zeros(64))


def test_what_is_sent_is_drawn_anew_for_each_step_bucket_rank_and_shard() -> None:
    compressor, values = BlockQuantizer(4, stochastic=True), torch.linspace(-1, 1, 64)

    def codes(step: int = 0, bucket: int = 0, rank: int = 0, owner: int = 0) -> bytes:
        work = Work(values.clone(), Layout.of(64), step, bucket, 1.0, BucketState(None), rank=rank)
        return bytes(compressor.encode_shard(work, slice(0, 64), owner)["codes"].numpy())

    def summed(rank: int) -> bytes:
        work = Work(values.clone(), Layout.of(64), 0, 0, 1.0, BucketState(None), rank=rank)
        others = [compressor.compress(torch.zeros(64), Layout.of(64))] * rank
        return bytes(compressor.sum_shard(work, slice(0, 64), others)["codes"].numpy())

    drawn = [codes(), codes(step=1), codes(bucket=1), codes(rank=1), codes(owner=1), summed(0), summed(1)]
    assert len(set(drawn)) == len(drawn)
    assert codes() == codes()


def test_ranks_and_shards_draw_different_numbers() -> None:
    numbers = [mixed(seed, rank, shard) for seed in (0, 1) for rank in range(4) for shard in (0, 1, 2, 1 << 32)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 2**64 for number in numbers)


@pytest.mark.parametrize(
    ("bits", "numel"), [(8, 1_000_000), (4, 1_000_000), (3, 1_000_000), (2.5, 1_000_000), (2, 1_000_000)]
)
def test_bytes_are_few(bits: float, numel: int) -> None:
    """At most (bits + 0.3) / 32 of dense's ring, headers included, as the engine counts."""
    for size in (2, 3, 4):
        ranks = step(BlockQuantizer(bits), "alltoall-allgather", size, normal(numel))
        dense = wire.allreduce(4 * numel, size)
        assert sum(seen.sent_bytes for seen in ranks) / size <= dense * (bits + 0.3) / 32


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"codes": torch.zeros(31, dtype=torch.uint8)}, "31 bytes of codes and 1 scales for 64 elements, expected 32"),
        ({"scales": torch.ones(2, dtype=torch.bfloat16)}, "32 bytes of codes and 2 scales"),
        ({"scales": -torch.ones(1, dtype=torch.bfloat16)}, "a scale is below zero"),
    ],
    ids=("codes", "scales", "sign"),
)
def test_a_broken_payload_is_refused(tensors: dict[str, torch.Tensor], words: str) -> None:
    compressor, layout = BlockQuantizer(4), Layout.of(64)
    good = compressor.compress(torch.ones(64), layout)
    broken = Payload({**good.tensors, **tensors}, 64)
    work = Work(torch.ones(64), layout, 0, 0, 1.0, BucketState(Residual(torch.zeros(64), torch.zeros(64))), rank=0)
    with pytest.raises(PayloadError, match=f"payload from rank 1: {words}"):
        compressor.write(work, [(slice(0, 64), [good, broken])])
    with pytest.raises(PayloadError, match=f"payload from rank 2: {words}"):
        compressor.sum_shard(work, slice(0, 64), [good, broken])
    with pytest.raises(PayloadError, match=words):
        compressor.add_to(torch.zeros(64), broken, 1.0, layout)


def test_shards_are_whole_blocks() -> None:
    assert shards(1000, 3, 64) == [slice(0, 384), slice(384, 704), slice(704, 1000)]
    assert shards(65, 4, 64) == [slice(0, 64), slice(64, 65), slice(65, 65), slice(65, 65)]
    assert shards(0, 2, 64) == [slice(0, 0), slice(0, 0)]


CAN = InProcessWorld(1).engine(0).capabilities


@pytest.mark.parametrize(
    ("numel", "size", "path"),
    [
        (10_000_000, 2, "allgather"),  # the same bytes as with owners, in fewer messages
        (10_000_000, 4, "alltoall-allgather"),
        (10_000_000, 16, "alltoall-allgather"),
        (10_000, 4, "allgather"),
        (10_000, 16, "allgather"),
    ],
)
def test_the_path_goes_by_bytes_and_messages(numel: int, size: int, path: str) -> None:
    decision = decide(Request(BlockQuantizer(4)), Layout.of(numel), size, CAN)
    assert decision.collective == path
    assert decision.reason == f"fewest bytes with {size} ranks, a message counting as 16 KiB"


def test_a_collective_that_the_engine_lacks_is_refused_before_the_first_step() -> None:
    can = Capabilities(("allreduce", "allgather", "alltoall", "broadcast"), (), (torch.float32,))
    request = Request(BlockQuantizer(4), "gather-broadcast")
    with pytest.raises(UnsupportedError, match=r"gather-broadcast.*has allreduce, allgather, alltoall, broadcast"):
        decide(request, Layout.of(100), 4, can)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 5}, "bits = 5"),
        ({"bits": 4, "block": 100}, "block = 100"),
        ({"bits": 4, "block": "64"}, "block = '64'"),
        ({"bits": 4, "block": np.int64(64)}, r"block = .*64.* is not a whole number, .* an int, and a power of two"),
        ({"bits": 4, "stochastic": 1}, "stochastic = 1"),
        ({"bits": 4, "seed": -1}, "seed = -1"),
    ],
    ids=str,
)
def test_bad_settings(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BlockQuantizer(**arguments)  # type: ignore[arg-type]


def test_only_what_can_be_summed_by_an_owner_goes_to_one() -> None:
    with pytest.raises(ConfigError, match="cannot carry"):
        build(TopK(0.1), Path("alltoall-allgather"))


def test_levels_are_three_or_five() -> None:
    assert [Compression.int2(levels=levels).compressor for levels in (3, 5)] == [BlockQuantizer(2), BlockQuantizer(2.5)]
    with pytest.raises(ConfigError, match="levels = 4 is not 3 or 5"):
        Compression.int2(levels=4)  # type: ignore[arg-type]
