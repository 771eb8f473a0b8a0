"""Each collective's rounds and bytes, over in-process ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import AllGather, AllToAll, ARTopk, Collective, Dense, Work
from hvd_compress.compressors import Cast, EFSign, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines import wire
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import PayloadError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload

NUMEL, RATIO, SIZE = 1000, 0.05, 4
K = 50


def make_work(rank: int, step: int = 0) -> Work:
    generator = torch.Generator().manual_seed(rank)
    return Work(
        gradient=torch.randn(NUMEL, generator=generator),
        layout=Layout.of(NUMEL),
        step=step,
        bucket=0,
        scale=1 / SIZE,
        state=BucketState(Residual.zeros(NUMEL)),
    )


def carry(collective: Collective, engine: InProcessEngine, step: int = 0) -> tuple[Work, list[str], int]:
    work = make_work(engine.rank, step)
    exchange = collective.exchange(work, engine.rank, engine.world_size)
    exchange.encode()
    exchange.communicate(engine)
    assert exchange.decode()
    return work, [call.verb for call in engine.take_calls()], engine.sent_bytes


@pytest.mark.parametrize(
    ("collective", "verbs", "payload_bytes"),
    [
        (Dense(Cast(), Path("dense", "ring")), ["allreduce"], wire.allreduce(4 * NUMEL, SIZE, "ring")),
        (AllToAll(Cast(torch.bfloat16)), ["alltoall", "allgather"], 2 * 3 * (2 * NUMEL // SIZE)),
        (AllGather(TopK(RATIO)), ["allgather"], wire.allgather(8 * K, SIZE)),
        (AllGather(EFSign()), ["allgather"], wire.allgather(NUMEL // 8 + 4, SIZE)),
        (
            ARTopk(TopK(RATIO), Path("star", "ring")),
            ["broadcast", "allreduce"],
            wire.broadcast(4 * K, SIZE) + wire.allreduce(4 * K, SIZE, "ring"),
        ),
        (
            ARTopk(TopK(RATIO), Path("var", "tree")),
            ["allgather", "broadcast", "allreduce"],
            wire.allgather(8, SIZE) + wire.broadcast(4 * K, SIZE) + wire.allreduce(4 * K, SIZE, "tree"),
        ),
    ],
    ids=["dense", "alltoall", "allgather", "efsign", "star", "var"],
)
def test_rounds_and_bytes_are_those_of_the_docstring(
    collective: Collective, verbs: list[str], payload_bytes: int
) -> None:
    results = run_ranks(SIZE, lambda engine: carry(collective, engine))
    assert [used for _, used, _ in results] == [verbs] * SIZE
    mean = sum(sent for _, _, sent in results) / SIZE
    # Above the payload there are only headers: at most 80 bytes and rounding, sent to each of the others.
    assert payload_bytes <= mean + 1
    assert mean <= payload_bytes + 96 * (SIZE - 1)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_alltoall_in_pieces_gives_the_same_bits(size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    collective = AllToAll(Cast(torch.bfloat16))

    def body(engine: InProcessEngine) -> tuple[torch.Tensor, int]:
        gradient = make_work(engine.rank).gradient.to(dtype)
        exchange = collective.exchange(Work(gradient, Layout.of(NUMEL, dtype=dtype), 0, 0, 1 / size), engine.rank, size)
        exchange.encode()
        exchange.communicate(engine)
        assert exchange.decode()
        return gradient, len(engine.take_calls())

    whole = run_ranks(size, body)
    monkeypatch.setattr(InProcessEngine, "piece_bytes", 100)
    pieces = run_ranks(size, body)
    assert [calls for _, calls in (*whole, *pieces)] == [2] * size + [2 * NUMEL // 50] * size
    for gradient, _ in (*whole, *pieces):
        assert torch.equal(gradient, whole[0][0])


@pytest.mark.parametrize("piece_bytes", [None, 8])
def test_alltoall_adds_in_rank_order(piece_bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """(2^24 + 1) - 2^24 is 0 in fp32, and 2^24 - 2^24 + 1 is not."""
    monkeypatch.setattr(InProcessEngine, "piece_bytes", piece_bytes)

    def body(engine: InProcessEngine) -> torch.Tensor:
        gradient = torch.full((12,), [2.0**24, 1.0, -(2.0**24)][engine.rank])
        exchange = AllToAll(Cast(torch.bfloat16)).exchange(Work(gradient, Layout.of(12), 0, 0, 1.0), engine.rank, 3)
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()
        return gradient

    for gradient in run_ranks(3, body):
        assert torch.equal(gradient, torch.zeros(12))


@pytest.mark.parametrize("position", [0, NUMEL // 2, NUMEL - 1])
def test_alltoall_in_pieces_says_on_every_rank_that_one_element_is_not_finite(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcessEngine, "piece_bytes", 100)

    def body(engine: InProcessEngine) -> bool:
        work = make_work(engine.rank)
        work.gradient[position] = float("inf") if engine.rank == 1 else 1.0
        exchange = AllToAll(Cast(torch.bfloat16)).exchange(work, engine.rank, 2)
        exchange.encode()
        exchange.communicate(engine)
        return bool(exchange.decode())

    assert run_ranks(2, body) == [False, False]


def test_star_takes_the_ranks_in_turn() -> None:
    for step in range(2 * SIZE):
        works = [work for work, _, _ in run_ranks(SIZE, lambda engine, s=step: carry(ARTopk(TopK(RATIO)), engine, s))]
        chosen = make_work(step % SIZE).gradient
        expected = torch.sort(chosen.abs(), descending=True).indices[:K].sort().values
        assert torch.equal(works[0].gradient.nonzero().reshape(-1), expected)


def test_var_takes_the_rank_with_the_largest_selected_norm() -> None:
    def body(engine: InProcessEngine):
        work = make_work(engine.rank)
        if engine.rank == 2:
            work.gradient.mul_(3)
        exchange = ARTopk(TopK(RATIO), Path("var")).exchange(work, engine.rank, SIZE)
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()
        return work

    expected = torch.sort(make_work(2).gradient.abs(), descending=True).indices[:K].sort().values
    for work in run_ranks(SIZE, body):
        assert torch.equal(work.gradient.nonzero().reshape(-1), expected)


def wrong_index(packed: torch.Tensor) -> None:
    packed[48:52] = 255  # behind a header of 32 bytes and one entry of 16: the first index becomes -1


def wrong_step(packed: torch.Tensor) -> None:
    packed[8] += 1


def one_index_more(packed: torch.Tensor) -> None:
    packed[40] += 1  # the length in the entry; the padding has room for it


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(wrong_index, "-1"), (wrong_step, "this rank is at"), (one_index_more, "51 indices instead of 50")],
)
def test_indices_are_checked_before_anything_is_taken(spoil: Callable[[torch.Tensor], None], words: str) -> None:
    def body(engine: InProcessEngine) -> None:
        work = make_work(engine.rank)
        collective = ARTopk(TopK(RATIO))
        exchange = collective.exchange(work, engine.rank, SIZE)
        exchange.encode()
        if engine.rank == 0:
            indices = collective.compressor.compress(make_work(0).gradient, work.layout)["indices"]
            packed = Payload({"indices": indices}, NUMEL).pack(step=0, bucket=0)
            spoil(packed)
            engine.broadcast(packed, 0)
            return
        before = work.pending.clone()
        with pytest.raises(PayloadError, match=f"indices from rank 0: .*{words}"):
            exchange.communicate(engine)
        assert torch.equal(work.pending, before)

    run_ranks(SIZE, body)


def a_word_less(words: torch.Tensor) -> torch.Tensor:
    return words[:-1]


def all_ones(words: torch.Tensor) -> torch.Tensor:
    return torch.full_like(words, -1)


@pytest.mark.parametrize(
    ("spoil", "message"), [(a_word_less, "words for 50 indices"), (all_ones, "more than 50 indices")]
)
def test_coded_indices_are_checked_before_anything_is_taken(
    spoil: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    def body(engine: InProcessEngine) -> None:
        work = make_work(engine.rank)
        collective = ARTopk(TopK(RATIO, index_coding="delta"))
        exchange = collective.exchange(work, engine.rank, SIZE)
        exchange.encode()
        if engine.rank == 0:
            words = collective.compressor.compress(make_work(0).gradient, work.layout)["index_words"]
            spoilt = Payload({"index_words": spoil(words)}, NUMEL).pack(step=0, bucket=0)
            packed = torch.zeros(Payload({"index_words": words}, NUMEL).packed_bytes, dtype=torch.uint8)
            packed[: spoilt.numel()] = spoilt
            engine.broadcast(packed, 0)
            return
        before = work.pending.clone()
        with pytest.raises(PayloadError, match=f"indices from rank 0: .*{message}"):
            exchange.communicate(engine)
        assert torch.equal(work.pending, before)

    run_ranks(SIZE, body)
