"""Whole trainings by local steps, with ranks in one process."""

from __future__ import annotations

import copy
import itertools
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.errors import ConfigError, ReplicaError
from hvd_compress.frontends.local import clock, outer
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.report import RoundReport
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.frontends.local.schedule import Schedule
from hvd_compress.settings import Settings


def model() -> torch.nn.Module:
    generator = torch.Generator().manual_seed(3)
    made = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for each in made.parameters():
            each.copy_(torch.randn(each.shape, generator=generator) / 4)
    return made


def loss_of(trained: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 6, generator=generator)
    target = torch.stack([inputs.sum(1), inputs[:, 0] * inputs[:, 1]], 1)
    return torch.nn.functional.mse_loss(trained(inputs), target)


def train(
    size: int,
    steps: int,
    compression: Any = None,
    fragments: int = 1,
    mix: float | None = None,
    outside: outer.Outer = outer.averaging,
    saved: dict[int, Any] | None = None,
    stop: int | None = None,
    more: int = 0,
    reports: list[Any] | None = None,
    parts_at: int | None = None,
    again: int = 0,
    **schedule: Any,
) -> Sequence[list[torch.Tensor]]:
    """Return the parameters of each rank after its steps, and the end of its round.

    Args:
        saved: checkpoints of ranks, from which they go on.
        stop: save a checkpoint there after this number of steps, and end.
        more: steps that each rank takes more than the one before.
        reports: gets the report of the last round of each rank.
        parts_at: the step before which rank 1 changes a parameter.
        again: steps that follow the end, which comes again after them.
    """

    def body(engine: Engine) -> list[torch.Tensor]:
        trained = model()
        asked = Compression.dense() if compression is None else compression
        replicas = Replicas(
            dict(trained.named_parameters()), lambda *_: engine, engine.rank, engine.world_size, Settings(check_every=2)
        )
        rounds = Rounds(replicas, asked, outer=outside, mix=mix, fragment_count=fragments)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
        words = {"every": 4, "start_after": 2, "delay": 0, "optimizer": optimizer, **schedule}
        planned = Schedule(rounds, **words)
        if saved and stop is None:
            trained.load_state_dict(saved[engine.rank]["model"])
            optimizer.load_state_dict(saved[engine.rank]["optimizer"])
            planned.load_state_dict(saved[engine.rank]["local"])
        rounds.open(planned.place)

        def take(first: int, last: int) -> None:
            for step in range(first, last):
                if (step, engine.rank) == (parts_at, 1):
                    trained[0].bias.data[3] += 1e-3
                optimizer.zero_grad()
                loss_of(trained, engine.rank, step).backward()
                planned.before_step()
                optimizer.step()
                planned.after_step()

        take(planned.steps, (steps if stop is None else stop) + more * engine.rank)
        if stop is not None and saved is not None:
            state = {"model": trained.state_dict(), "optimizer": optimizer.state_dict(), "local": planned.state_dict()}
            saved[engine.rank] = copy.deepcopy(state)
            rounds.close()
            return []
        planned.finish()
        if again:
            exchanges = rounds.handle.session.step
            take(planned.steps, planned.steps + again)
            assert rounds.handle.session.step > exchanges + 1
            planned.finish()
        if reports is not None:
            reports.append(rounds.said.report)
        rounds.close()
        return [each.detach() for each in trained.parameters()]

    return run_ranks(size, body)


def synchronous(size: int, steps: int) -> list[torch.Tensor]:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of(trained, rank, step) for rank in range(size)]).mean().backward()
        optimizer.step()
    return [each.detach() for each in trained.parameters()]


def final_loss(parameters: Sequence[torch.Tensor]) -> float:
    trained = model()
    torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(parameters), trained.parameters())
    return sum(loss_of(trained, 99, 500 + batch).item() for batch in range(8)) / 8


def test_one_step_a_round_is_synchronous_training() -> None:
    for found in train(3, 12, every=1):
        for mine, expected in zip(found, synchronous(3, 12), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize(("delay", "mix"), [(0, None), (1, None), (1, 0.5)])
@pytest.mark.parametrize("name", ["dense", "int4"])
def test_ranks_agree_at_the_end_and_have_learned(fragments: int, delay: int, mix: float, name: str) -> None:
    compression = Compression.dense() if name == "dense" else Compression.int4()
    ranks = train(3, 60, compression, fragments, mix, delay=delay)
    assert all(torch.equal(mine, first) for found in ranks for mine, first in zip(found, ranks[0], strict=True))
    assert final_loss(ranks[0]) < 1.35 * final_loss(synchronous(3, 60))


@pytest.mark.parametrize("more", [1, 3, 9])
@pytest.mark.parametrize(("fragments", "delay", "mix"), [(1, 0, None), (2, 0, None), (2, 2, None), (2, 1, 0.5)])
def test_ranks_that_have_fewer_batches_wait_for_the_others_and_agree(
    fragments: int, delay: int, mix: float | None, more: int
) -> None:
    ranks = train(3, 12, Compression.int4(), fragments, mix, delay=delay, more=more)
    assert all(torch.equal(mine, first) for found in ranks for mine, first in zip(found, ranks[0], strict=True))


def test_the_last_rank_alone_still_learns() -> None:
    """What it has learned after the others' last step is in the mean, at its share."""
    learned = [final_loss(train(2, 12, more=more)[0]) for more in (0, 40)]
    assert learned[1] < 0.9 * learned[0]


@pytest.mark.parametrize(("steps", "start_after"), [(2, 2), (0, 0)])
def test_a_rank_whose_batches_end_before_the_first_round_takes_part_in_those_of_others(
    steps: int, start_after: int
) -> None:
    ranks = train(3, steps, Compression.int4(), start_after=start_after, more=3)
    assert all(torch.equal(mine, first) for found in ranks for mine, first in zip(found, ranks[0], strict=True))


@pytest.mark.parametrize("other", [2, 1])
def test_ranks_that_ask_for_other_rounds_are_told(other: int) -> None:
    """A function may see more than the steps; where one rank's rounds end, that is a synchronous step."""
    ranks = itertools.count()

    def every(steps: int) -> int:
        mine = threads.setdefault(threading.get_ident(), next(ranks))
        return other if mine and steps == 8 else 4

    threads: dict[int, int] = {}
    with pytest.raises(ConfigError, match=r"\d steps on rank 0 and \d on rank 1, .*let every\(\) depend on"):
        train(2, 20, every=every, start_after=0)


def test_training_goes_on_after_an_end_whose_last_exchange_was_late() -> None:
    """The next one is due before it lands."""
    ranks = train(2, 10, delay=4, every=lambda steps: 2 if steps < 14 else 8, start_after=0, again=30)
    assert all(torch.equal(mine, first) for mine, first in zip(*ranks, strict=True))


def two_then_one(steps: int) -> int:
    return 2 if steps < 4 else 1


class Parts(torch.nn.Module):
    """Each rank trains a part of its own, and one that all do."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.ones(3) for _ in range(3))

    def forward(self, rank: int) -> torch.Tensor:
        return 10 * self.parts[rank].sum() + self.parts[2].sum()


@pytest.mark.parametrize("spoiled", [False, True])
def test_optimizers_agree_where_steps_become_synchronous(spoiled: bool) -> None:
    """Of what all have trained on the mean, of finite ones; what some have not, all have forgotten."""

    def body(engine: Engine) -> list[torch.Tensor]:
        trained = Parts()
        replicas = Replicas(
            dict(trained.named_parameters()), lambda *_: engine, engine.rank, engine.world_size, Settings(check_every=1)
        )
        rounds = Rounds(replicas, Compression.dense(), outer=outer.averaging)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
        planned = Schedule(rounds, every=two_then_one, start_after=0, delay=0, optimizer=optimizer)
        rounds.open()
        for step in range(8):
            optimizer.zero_grad()
            trained(engine.rank).backward()
            if spoiled and (step, engine.rank) == (3, 1):
                trained.parts[2].grad.fill_(torch.inf)
            planned.before_step()
            optimizer.step()
            planned.after_step()
        planned.finish()
        rounds.close()
        kept = [optimizer.state[each]["momentum_buffer"] for each in trained.parameters()]
        return [*(each.detach() for each in trained.parameters()), *kept]

    first, second = run_ranks(2, body)
    assert all(each.isfinite().all() for each in first)
    assert all(map(torch.equal, first, second))


def test_checkpoints_of_different_steps_are_refused() -> None:
    saved: dict[int, Any] = {}
    train(2, 12, saved=saved, stop=9)
    saved[1]["local"]["steps"] -= 1
    saved[1]["local"]["place"] -= 1
    with pytest.raises(ConfigError, match="step 8, 2 of a round of 4"):
        train(2, 12, saved=saved)


@pytest.mark.parametrize("more", [2, 3, 4])
def test_a_rank_may_end_where_steps_would_become_synchronous(more: int) -> None:
    ranks = train(2, 10, every=lambda steps: 4 if steps < 10 else 1, more=more)
    assert all(torch.equal(mine, first) for mine, first in zip(*ranks, strict=True))


def test_ranks_that_cannot_agree_say_so_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of one rank are not finite, so its round counts on none."""
    spoil = loss_of

    def spoiled(trained: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        return spoil(trained, rank, step) * (float("nan") if (rank, step) == (1, 7) else 1)

    monkeypatch.setattr(sys.modules[__name__], "loss_of", spoiled)
    with pytest.raises(ReplicaError, match="do not agree"):
        train(2, 11)


def two_then_four(steps: int) -> int:
    return 2 if steps < 8 else 4


def test_a_round_has_the_steps_that_a_function_says() -> None:
    asked = []

    def every(steps: int) -> int:
        asked.append(steps)
        return two_then_four(steps)

    train(1, 17, every=every, start_after=2)
    assert asked == [2, 4, 6, 8, 12, 16]
    with pytest.raises(ConfigError, match=r"every\(2\) = 0 is not a whole number"):
        train(1, 17, every=lambda steps: 0)


def test_a_delay_that_is_longer_than_a_round_of_a_function_ends_with_it() -> None:
    ranks = train(2, 20, every=two_then_four, delay=3)
    assert all(torch.equal(mine, first) for mine, first in zip(*ranks, strict=True))


def test_the_report_of_a_round_is_alike_on_all_ranks_and_says_how_far_apart_they_are() -> None:
    """One rank is not spread, and ranks that learn from the same are not, either."""
    reports: list[Any] = []
    train(1, 7, reports=reports)
    train(3, 7, reports=reports)
    assert reports[0] == RoundReport(0.0, 1.0)
    assert reports[1:] == [reports[1]] * 3
    assert 0 < reports[1].spread < 5
    assert 0 < reports[1].cosine < 1


@pytest.mark.parametrize("every", [4, two_then_four])
@pytest.mark.parametrize("stop", [1, 7, 9, 12])
@pytest.mark.parametrize("name", ["dense", "int4"])
def test_a_training_that_goes_on_from_a_checkpoint_has_the_bits_of_one_that_did_not_stop(
    name: str, stop: int, every: Any
) -> None:
    """In the synchronous steps, in the middle of a round, while a fragment is on its way, and at the end of a round."""
    compression = Compression.dense() if name == "dense" else Compression.int4()
    settings: dict[str, Any] = {"fragments": 2, "delay": 1, "mix": 0.5, "outside": outer.Outer(0.9, 0.5)}
    settings["every"] = every
    whole = train(2, 15, compression, **settings)
    saved: dict[int, Any] = {}
    train(2, 15, compression, saved=saved, stop=stop, **settings)
    resumed = train(2, 15, compression, saved=saved, **settings)
    for mine, expected in zip(resumed, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))


def test_other_ranks_go_on_from_the_anchors() -> None:
    saved: dict[int, Any] = {}
    train(2, 15, saved=saved, stop=9)
    anchors = saved[0]["local"]["rounds"]["anchors"]
    ranks = train(3, 9, saved={rank: saved[0] for rank in range(3)})
    for found in ranks:
        for mine, anchor in zip(found, anchors.values(), strict=True):
            torch.testing.assert_close(mine, anchor)


def test_a_checkpoint_of_other_fragments_is_refused() -> None:
    saved: dict[int, Any] = {}
    train(1, 15, saved=saved, stop=9)
    with pytest.raises(ConfigError, match="this checkpoint has 1 fragments"):
        train(1, 15, saved=saved, fragments=2)


def test_ranks_that_part_in_synchronous_steps_are_told() -> None:
    with pytest.raises(ReplicaError, match=r"'0.bias'.*rank 1"):
        train(2, 12, start_after=12, parts_at=3)


def test_ranks_that_part_in_local_steps_agree_again() -> None:
    first, second = train(2, 12, start_after=4, parts_at=6)
    assert all(map(torch.equal, first, second))


def weighed(counts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the parameters after rounds in which each rank has taken these numbers of steps, one after the other."""
    anchors = [each.detach() for each in model().parameters()]
    optimizers: dict[int, Any] = {}
    for place, round_counts in enumerate(counts):
        total, brought = sum(round_counts), [torch.zeros_like(each) for each in anchors]
        for rank, count in enumerate(round_counts):
            trained = model()
            for mine, anchor in zip(trained.parameters(), anchors, strict=True):
                mine.data.copy_(anchor)
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
            if rank in optimizers:
                optimizer.load_state_dict(optimizers[rank])
            for step in range(count):
                optimizer.zero_grad()
                loss_of(trained, rank, sum(each[rank] for each in counts[:place]) + step).backward()
                optimizer.step()
            optimizers[rank] = optimizer.state_dict()
            for part, mine, anchor in zip(brought, trained.parameters(), anchors, strict=True):
                part += (mine.detach() - anchor) * count / total
        anchors = [anchor + part for anchor, part in zip(anchors, brought, strict=True)]
    return anchors


def test_what_a_slow_rank_has_learned_weighs_by_its_steps() -> None:
    """Rank 1 has time for one step in each round of four."""

    def body(engine: Engine) -> tuple[int, list[torch.Tensor]]:
        trained = model()
        replicas = Replicas(dict(trained.named_parameters()), lambda *_: engine, engine.rank, 3, Settings())
        rounds = Rounds(replicas, Compression.dense(), outer=outer.averaging)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
        late = 1e-9 if engine.rank == 1 else None
        planned, taken = Schedule(rounds, every=4, start_after=0, delay=0, deadline_s=late), 0
        rounds.open()
        while planned.steps < 8:
            optimizer.zero_grad()
            loss_of(trained, engine.rank, taken).backward()
            planned.before_step()
            optimizer.step()
            planned.after_step()
            taken += 1
        rounds.close()
        return taken, [each.detach() for each in trained.parameters()]

    found = run_ranks(3, body)
    assert [taken for taken, _ in found] == [8, 2, 8]
    for mine, *others, expected in zip(*(each for _, each in found), weighed([(4, 1, 4), (4, 1, 4)]), strict=True):
        assert all(torch.equal(mine, each) for each in others)
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize(("deadline_s", "taken"), [(None, 4), (4.0, 4), (1.0, 1), (1.6, 2), (2.4, 2), ("auto", 2)])
@pytest.mark.parametrize("count", [1, 2])
def test_a_deadline(monkeypatch: pytest.MonkeyPatch, deadline_s: Any, taken: int, count: int) -> None:
    """Steps take a second each, and the median rank's the half of that, in rounds of four."""
    now = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])

    def body(engine: Engine) -> int:
        trained = model()
        replicas = Replicas(dict(trained.named_parameters()), lambda *_: engine, 0, 1, Settings())
        rounds = Rounds(replicas, Compression.dense(), outer=outer.averaging, fragment_count=count)
        planned, own = Schedule(rounds, every=4, start_after=0, delay=0, deadline_s=deadline_s), 0
        rounds.open()
        for _ in range(2):  # of the first the median rank's steps are not known
            end, own = planned.steps + 4, 0
            while planned.steps < end:
                planned.before_step()
                now[0] += 1.0
                planned.after_step()
                own += 1
                rounds.said.typical_step_s = 0.5
        rounds.close()
        return own

    (found,) = run_ranks(1, body)
    assert found == max(taken, count)
