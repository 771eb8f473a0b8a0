"""Rounds of local steps, with ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.errors import ReplicaError
from hvd_compress.frontends.local import fragments, outer
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.report import RoundReport
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.settings import Settings

SHAPES = {"a.weight": (7, 3), "a.bias": (7,), "b.weight": (5, 7), "c.weight": (2, 5), "c.bias": (2,)}


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in SHAPES.items()}


def learn(mine: dict[str, torch.Tensor], rank: int, step: int) -> None:
    """Move a rank's parameters, each rank by something else."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    with torch.no_grad():
        for each in mine.values():
            each.add_(torch.randn(each.shape, generator=generator), alpha=0.01)


def replicas(mine: dict[str, torch.Tensor], engine: Engine) -> Replicas:
    return Replicas(mine, lambda *_: engine, engine.rank, engine.world_size, Settings())


def in_ranks(
    size: int, body: Callable[[Rounds, dict[str, torch.Tensor], int], Any], request: Any = None, **options: Any
) -> Sequence[Any]:
    def whole(engine: Engine) -> Any:
        mine = parameters()
        asked = Compression.dense() if request is None else request
        rounds = Rounds(replicas(mine, engine), asked, **{"outer": outer.averaging, **options})
        rounds.open()
        try:
            return body(rounds, mine, engine.rank)
        finally:
            rounds.close()

    return run_ranks(size, whole)


def exchange(rounds: Rounds) -> bool:
    found = []
    for fragment in range(rounds.count):
        rounds.launch(fragment)
        found.append(rounds.land())
    return all(found)


def copies(mine: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in mine.items()}


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("every", [1, 3, 8])
def test_each_fragment_is_due_once_a_round(count: int, every: int) -> None:
    for start in (1, 1 + every):
        begun = [number for step in range(start, start + every) for number in fragments.due(step, every, count)]
        assert sorted(begun) == list(range(count))
    assert count - 1 in fragments.due(every, every, count)


@pytest.mark.parametrize("count", [1, 2])
def test_rounds_that_never_count_end_training_until_a_checkpoint_is_loaded(count: int) -> None:
    """Also where only one of the fragments is concerned. That rank goes on from the anchor."""

    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> int:
        exchange(rounds)
        state, kept, counted = rounds.state_dict(), copies(mine), 0
        message = ""
        while not message and counted < 20:
            if rank == 1:
                mine["c.bias"].data[0] = torch.nan
            counted += 1
            try:
                exchange(rounds)
            except ReplicaError as error:
                message = str(error)
            assert torch.equal(mine["c.bias"], rounds.anchors["c.bias"])
        assert "8 rounds have not counted" in message
        for name, each in mine.items():
            each.data.copy_(kept[name])
        rounds.load_state_dict(state)
        learn(mine, rank, 1)
        assert exchange(rounds)
        return counted

    assert in_ranks(2, body, fragment_count=count) == [8, 8]


def test_where_steps_become_synchronous_all_that_was_learned_is_in_the_parameters() -> None:
    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
        for step in range(3):
            learn(mine, rank, step)
            exchange(rounds)
        learn(mine, rank, 3)
        rounds.meet()
        assert not any(each.any() for each in rounds.handle.session.states.state_dict().values())
        return copies(mine)

    expected, ranks = parameters(), in_ranks(2, body, Compression.int4())
    learned = [parameters() for _ in ranks]
    for rank, each in enumerate(learned):
        for step in range(4):
            learn(each, rank, step)
    for name, start in expected.items():
        mean = torch.stack([each[name].detach() for each in learned]).mean(0)
        assert not torch.equal(mean, start)
        for found in ranks:
            torch.testing.assert_close(found[name], mean, rtol=0, atol=1e-5)


def test_fragments_are_due_as_far_apart_as_steps_allow() -> None:
    assert [fragments.due(step, 8, 2) for step in (3, 4, 8)] == [[], [0], [1]]
    assert [fragments.due(step, 3, 2) for step in (1, 2, 3)] == [[], [0], [1]]


def test_each_parameter_is_in_one_fragment_and_layers_stay_together() -> None:
    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> Any:
        return rounds._names

    for found in in_ranks(2, body, fragment_count=2):
        assert found == [("a.weight", "a.bias", "c.weight", "c.bias"), ("b.weight",)]


@pytest.mark.parametrize("count", [1, 2])
def test_averaging_is_the_mean_of_all_ranks_and_alike_to_the_bit(count: int) -> None:
    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> Any:
        learned = []
        for step in range(3):
            learn(mine, rank, 2 * step)
            learn(mine, rank, 2 * step + 1)
            learned.append(copies(mine))
            assert exchange(rounds)
            learned.append(copies(mine))
        return learned

    ranks = in_ranks(3, body, fragment_count=count)
    for before, after in zip(ranks[0][::2], ranks[0][1::2], strict=True):
        assert before.keys() == after.keys()
    for place in range(0, 6, 2):
        for name in SHAPES:
            mean = torch.stack([rank[place][name] for rank in ranks]).mean(0)
            torch.testing.assert_close(ranks[0][place + 1][name], mean)
            assert all(torch.equal(rank[place + 1][name], ranks[0][place + 1][name]) for rank in ranks)


def test_nothing_is_lost_of_what_is_compressed() -> None:
    """What all have learned is what anchors have moved, and what ranks still remember."""

    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> Any:
        start, learned = copies(mine), {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        for step in range(5):
            before = copies(mine)
            learn(mine, rank, step)
            for name, each in mine.items():
                learned[name] += each.detach() - before[name]
            assert exchange(rounds)
        state = rounds.handle.session.states.state_dict()
        moved = {name: rounds.anchors[name].detach() - start[name] for name in SHAPES}
        return learned, moved, state

    ranks = in_ranks(2, body, Compression.int4().by(collective="allgather"))
    for name in SHAPES:
        learned = torch.stack([rank[0][name] for rank in ranks]).mean(0)
        kept = torch.stack([-rank[2][name].view(SHAPES[name]) for rank in ranks]).mean(0)
        torch.testing.assert_close(ranks[0][1][name] + kept, learned, rtol=1e-4, atol=1e-5)


def test_what_is_not_finite_does_not_count_and_nothing_is_lost() -> None:
    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> Any:
        learn(mine, rank, 0)
        kept = mine["b.weight"].detach().clone()
        if rank == 1:
            with torch.no_grad():
                mine["b.weight"][0, 0] = torch.nan
        rounds.launch(0)
        assert not rounds.land()
        with torch.no_grad():
            mine["b.weight"].copy_(kept)
        learn(mine, rank, 1)
        before = copies(mine)
        assert exchange(rounds)
        return before, copies(mine)

    ranks = in_ranks(2, body)
    for name in SHAPES:
        torch.testing.assert_close(ranks[0][1][name], torch.stack([rank[0][name] for rank in ranks]).mean(0))


@pytest.mark.parametrize("mix", [None, 0.0, 0.25])
def test_what_lands_late_meets_what_was_learned_meanwhile(mix: float | None) -> None:
    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> Any:
        learn(mine, rank, 0)
        launched = copies(mine)
        rounds.launch(0, lands_late=True)
        learn(mine, rank, 1)
        before = copies(mine)
        assert rounds.land()
        return launched, before, copies(mine), {name: each.detach() for name, each in rounds.anchors.items()}

    ranks = in_ranks(2, body, mix=mix)
    for name in SHAPES:
        mean = torch.stack([rank[0][name] for rank in ranks]).mean(0)
        for launched, before, after, anchors in ranks:
            torch.testing.assert_close(anchors[name], mean)
            learned = before[name] - launched[name]
            expected = mean + learned if mix is None else mix * before[name] + (1 - mix) * mean
            torch.testing.assert_close(after[name], expected)


def test_diloco_is_torchs_sgd_on_the_anchors() -> None:
    def body(rounds: Rounds, mine: dict[str, torch.Tensor], rank: int) -> Any:
        steps = []
        for step in range(3):
            before = copies(mine)
            learn(mine, rank, step)
            steps.append({name: before[name] - mine[name].detach() for name in SHAPES})
            assert exchange(rounds)
        return steps, copies(mine)

    ranks = in_ranks(2, body, outer=outer.diloco)
    expected = parameters()
    optimizer = torch.optim.SGD(expected.values(), lr=0.7, momentum=0.9, nesterov=True)
    for step in range(3):
        for name, each in expected.items():
            each.grad = torch.stack([rank[0][step][name] for rank in ranks]).mean(0)
        optimizer.step()
    for name, each in expected.items():
        torch.testing.assert_close(ranks[0][1][name], each.detach())


def test_a_report_has_spread_and_cosine_by_their_definitions() -> None:
    vectors = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, -1.0]], dtype=torch.float64)
    mean = vectors.mean(0)
    found = RoundReport.of([each.square().sum().item() for each in vectors], mean.square().sum().item())
    assert found is not None
    spread = (vectors - mean).square().sum(1).mean().sqrt() / mean.norm()
    products = [vectors[i] @ vectors[j] for i in range(3) for j in range(3) if i != j]
    cosine = torch.stack(products).mean() / vectors.square().sum(1).mean()
    assert (found.spread, found.cosine) == pytest.approx((spread.item(), cosine.item()))
    assert RoundReport.of([0.0, 0.0], 0.0) is None
    assert found.figures() == {"local/spread": found.spread, "local/cosine": found.cosine}
