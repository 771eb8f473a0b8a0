"""Ok-Topk against a restatement of its algorithms on whole tensors, and the bytes that it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.collectives.packed import Packer
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import PayloadError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.papers.family.oktopk import DENSITY, GLOBAL, OkTopk
from hvd_compress.papers.family.oktopk_allreduce import OkTopkAllReduce

NUMEL = 3000
OFTEN = OkTopk(0.02, threshold_steps=4, region_steps=3)


def normal(rank: int, step: int) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + rank))


def skewed(rank: int, step: int) -> torch.Tensor:
    """All that is large lies at the beginning."""
    x = normal(rank, step)
    x[NUMEL // 10 :] *= 1e-3
    return x


@dataclass
class Step:
    result: torch.Tensor
    pending: torch.Tensor
    verbs: list[str]
    sent_bytes: int
    finite: bool


def train(
    size: int,
    steps: int,
    compressor: OkTopk = OFTEN,
    gradients: Callable[[int, int], torch.Tensor] = normal,
    first: int = 0,
) -> list[list[Step]]:
    """Return what each rank has in each step."""

    def body(engine: InProcessEngine) -> list[Step]:
        numel = gradients(0, 0).numel()
        layout = Layout.of(numel)
        state = BucketState(
            Residual(torch.zeros(numel), torch.empty(numel)), dict(compressor.new_state(layout, torch.device("cpu")))
        )
        found = []
        for step in range(first, first + steps):
            before = engine.sent_bytes
            work = Work(gradients(engine.rank, step), layout, step, 0, 1 / size, state, engine.rank)
            exchange = OkTopkAllReduce(compressor).exchange(work, engine.rank, size)
            exchange.encode()
            exchange.communicate(engine)
            finite = bool(exchange.decode())
            verbs = [call.verb for call in engine.take_calls()]
            assert work.pending is not None
            found.append(
                Step(work.gradient, work.pending.clone(), verbs, engine.sent_bytes - before, finite),
            )
            state.commit() if finite else state.discard()
        return found

    return run_ranks(size, body)


def reference(size: int, steps: int, k: int) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Algorithms 1 and 2 with thresholds that are found again where they do not fit any more; no regions."""
    residuals = [torch.zeros(NUMEL) for _ in range(size)]
    local, limit, history = [0.0] * size, 0.0, []
    for step in range(steps):
        corrected = [normal(rank, step) + residuals[rank] for rank in range(size)]
        masks = []
        for rank, x in enumerate(corrected):
            mask = x.abs() >= local[rank]
            if step % 4 == 0 or not 2 / 3 * k <= int(mask.sum()) <= 4 / 3 * k:
                local[rank] = float(x.abs().sort().values[-k])
                mask = x.abs() >= local[rank]
            masks.append(mask)
        total = torch.zeros(NUMEL)
        for x, mask in zip(corrected, masks, strict=True):
            total += torch.where(mask, x, 0.0)
        if step % 4 == 0:
            limit = float(total.abs().sort().values[-k])
        kept = torch.stack(masks).any(0) & (total.abs() >= limit)
        residuals = [torch.where(mask & kept, 0.0, x) for x, mask in zip(corrected, masks, strict=True)]
        history.append((torch.where(kept, total, 0.0) * (1 / size), residuals))
        if int(kept.sum()) > 4 / 3 * k:
            limit = float(total[kept].abs().sort().values[-k])
        elif int(kept.sum()) < 2 / 3 * k:
            limit *= 0.8
    return history


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_it_is_what_the_paper_says(size: int) -> None:
    steps = 14
    ranks = train(size, steps)
    for step, (result, residuals) in enumerate(reference(size, steps, round(0.02 * NUMEL))):
        for rank in range(size):
            assert torch.equal(ranks[rank][step].result, result), (rank, step)
            assert torch.equal(ranks[rank][step].pending, residuals[rank]), (rank, step)


@pytest.mark.parametrize("gradients", [normal, skewed])
def test_regions_change_nothing_but_who_adds(gradients: Callable[[int, int], torch.Tensor]) -> None:
    seldom = train(4, 6, OkTopk(0.02, threshold_steps=4, region_steps=1000), gradients, first=4)
    often = train(4, 6, OkTopk(0.02, threshold_steps=4, region_steps=1), gradients, first=4)
    for one, other in zip(seldom, often, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.result, b.result)
            assert torch.equal(a.pending, b.pending)


def test_collectives_depend_on_the_step_alone() -> None:
    usual = ["alltoall", "allgather", "allgather"]
    for steps in train(3, 9):
        expected = [
            ["allgather"] * (step % 3 == 0) + ["alltoall"] + ["allgather"] * (step % 4 == 0) for step in range(9)
        ]
        assert [one.verbs for one in steps] == [verbs + usual[1:] for verbs in expected]


def test_an_uneven_selection_is_shared_out() -> None:
    """Before regions are balanced, all of it may lie with one rank: more than 4 times the average of 7."""
    compressor = OkTopk(0.02, threshold_steps=4, region_steps=1000)
    ranks = train(7, 1, compressor, skewed, first=4)
    assert [steps[0].verbs.count("alltoall") for steps in ranks] == [2] * 7
    balanced = train(7, 1, OkTopk(0.02, threshold_steps=4, region_steps=4), skewed, first=4)
    assert [steps[0].verbs.count("alltoall") for steps in balanced] == [1] * 7
    for rank in range(7):
        assert torch.equal(ranks[rank][0].result, balanced[0][0].result)


@pytest.mark.parametrize("size", [2, 4, 7])
@pytest.mark.parametrize("ratio", [0.02, 0.2])
@pytest.mark.parametrize("gradients", [normal, skewed])
def test_a_rank_sends_at_most_6k_values(gradients: Callable[[int, int], torch.Tensor], ratio: float, size: int) -> None:
    """6k (N-1)/N words of 4 bytes, on average over ranks; from a first few steps on, in which residuals grow fast."""
    k = round(ratio * NUMEL)
    ranks = train(size, 40, OkTopk(ratio, threshold_steps=10, region_steps=20), gradients)
    most = 24 * k * (size - 1) / size + 4 * 96 * (size - 1)  # headers of four calls
    sent = [sum(steps[step].sent_bytes for steps in ranks) / size for step in range(40)]
    assert max(sent[step] for step in range(10, 40) if step % 10) <= most
    # To evaluate thresholds takes 4 bytes a sum beside it, of which there may be N k.
    assert max(sent[step] for step in (10, 30)) <= most + 4 * k * (size - 1)
    assert [int(ranks[0][step].result.count_nonzero()) for step in range(0, 40, 10)] == [k] * 4


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("step", [0, 1])
def test_what_is_not_finite_reaches_all(size: int, bad: float, step: int) -> None:
    def gradients(rank: int, now: int) -> torch.Tensor:
        x = normal(rank, now)
        if now == step and rank == size - 1:
            x[7] = bad
        return x

    ranks = train(size, step + 2, gradients=gradients)
    for steps in ranks:
        assert [one.finite for one in steps] == [now != step for now in range(step + 2)]
        assert torch.equal(steps[-1].result, ranks[0][-1].result)


@pytest.mark.parametrize("numel", [1, 2, 5])
@pytest.mark.parametrize("zero", [False, True])
def test_few_elements_and_none_that_counts(numel: int, zero: bool) -> None:
    """Most parts are empty, on every way."""

    def gradients(rank: int, step: int) -> torch.Tensor:
        return torch.zeros(numel) if zero else normal(rank, step)[:numel]

    ranks = train(4, 6, gradients=gradients)
    for steps in ranks:
        assert all(one.finite for one in steps)
        for one, other in zip(steps, ranks[0], strict=True):
            assert torch.equal(one.result, other.result)
    assert any(bool(one.result.any()) for one in ranks[0]) is not zero


def test_nothing_is_lost() -> None:
    """What all ranks have got and still keep adds up to all gradients."""
    ranks = train(3, 10)
    got = sum(step.result.double() for step in ranks[0]) * 3
    kept = sum(steps[-1].pending.double() for steps in ranks)
    given = sum(normal(rank, step).double() for rank in range(3) for step in range(10))
    torch.testing.assert_close(got + kept, given, rtol=0, atol=1e-4)


def test_without_a_threshold_ranks_send_their_share() -> None:
    """The step that would have found one may have failed, or buckets may be new."""
    k = round(0.02 * NUMEL)
    for steps in train(4, 1, first=1):
        assert steps[0].verbs == ["alltoall", "allgather", "allgather"]
        assert 0 < int(steps[0].result.count_nonzero()) <= k


@pytest.mark.parametrize("numel", [NUMEL, 100])
@pytest.mark.parametrize("ranks", [1, 2, 5, 16])
def test_regions_hold_as_much(ranks: int, numel: int) -> None:
    layout = Layout.of(numel)
    state = BucketState(None, dict(OFTEN.new_state(layout, torch.device("cpu"))))
    work = Work(torch.zeros(numel), layout, 0, 0, 1.0, state)
    even = OFTEN.starts(work, ranks)
    assert even.tolist() == [-(-numel * part // ranks) for part in range(1, ranks)]
    indices = (torch.rand(2000, generator=torch.Generator().manual_seed(1)).square() * numel).int()
    OFTEN.set_density(work, OFTEN.histogram(indices, layout))
    starts = [0, *OFTEN.starts(work, ranks).tolist(), numel]
    assert starts == sorted(starts)
    if numel == NUMEL:
        held = [int(((indices >= a) & (indices < b)).sum()) for a, b in pairwise(starts)]
        assert max(held) <= 1.3 * 2000 / ranks
    OFTEN.set_density(work, torch.zeros(1024, dtype=torch.int64))
    assert torch.equal(OFTEN.starts(work, ranks), even)


def test_what_is_kept_is_that_of_the_committed_step() -> None:
    layout = Layout.of(NUMEL)
    state = BucketState(
        Residual(torch.zeros(NUMEL), torch.empty(NUMEL)), dict(OFTEN.new_state(layout, torch.device("cpu")))
    )
    before = {key: tensor.clone() for key, tensor in state.current.items()}

    def body(engine: InProcessEngine) -> None:
        exchange = OkTopkAllReduce(OFTEN).exchange(Work(normal(0, 0), layout, 0, 0, 1.0, state), 0, 1)
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()

    run_ranks(1, body)
    assert all(torch.equal(state.current[key], tensor) for key, tensor in before.items())
    assert set(state.pending) == set(before)
    state.commit()
    assert float(state.current[GLOBAL, "0"]) > 0
    assert int(state.current[DENSITY, "0"].sum()) == round(0.02 * NUMEL)


def test_a_payload_of_unequal_lengths_names_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Packer.pack

    def spoil(packer: Packer, name: str, payload: object) -> torch.Tensor:
        packed = pack(packer, name, payload)
        if packer._work.rank == 1 and name == "to 0":
            packed[40] += 1  # the number of indices, in the first entry behind a header of 32 bytes
        return packed

    monkeypatch.setattr(Packer, "pack", spoil)
    with pytest.raises(PayloadError, match="from rank 1"):
        train(2, 1)


def test_an_index_out_of_range_is_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    select = OkTopk.select_local

    def beyond(compressor: OkTopk, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        indices, values = select(compressor, work)
        return torch.cat([indices[:-1], torch.tensor([NUMEL], dtype=torch.int32)]), values

    monkeypatch.setattr(OkTopk, "select_local", beyond)
    with pytest.raises(PayloadError, match=str(NUMEL)):
        train(2, 1, OkTopk(0.02, region_steps=1000), first=32)
