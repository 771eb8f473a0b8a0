"""DDP under a manager: what a step that counts on some ranks alone leaves behind; jobs of it are in tests/jobs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.dialing import Listener
from hvd_compress.errors import CommunicationError, ConfigError
from hvd_compress.frontends.ddp.quorum import Quorum, QuorumHook
from hvd_compress.settings import Settings
from tests.unit.frontends.managers import Manager, meet, together

NUMEL = 600


class Bucket:
    """The only one of a step."""

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        self._parameter, self._gradient = parameter, gradient

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> torch.Tensor:
        return self._gradient

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]


class Rank:
    """One of a training whose buckets a test hands over."""

    def __init__(self, rank: int, request: Any) -> None:
        self.rank, self.manager, self.listener = rank, Manager(), Listener()
        self.parameter = torch.zeros(NUMEL, requires_grad=True)
        self.quorum: Quorum | None = None
        settings = Settings(timeout_s=20.0)
        self.hook = QuorumHook({"w": self.parameter}, request, settings, self.manager, lambda: self.quorum)

    def exchange(self, step: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(10 * step + self.rank)
        gradient = torch.randint(-9, 9, (NUMEL,), generator=draw).float()
        return self.hook(Bucket(self.parameter, gradient)).wait()  # type: ignore[no-any-return]

    def owed(self) -> torch.Tensor:
        (own,) = self.hook.handle.state_dict()["ranks"].values()
        found: torch.Tensor = own["residuals"].get("w", torch.zeros(NUMEL))
        return found.view(-1)


@pytest.fixture
def ranks() -> Any:
    made = [Rank(rank, Compression.topk(0.2).by(collective="allgather")) for rank in range(2)]
    meet(1, *made)
    yield made
    for each in made:
        each.hook.close()
        each.listener.close()


def computed(*steps: int) -> torch.Tensor:
    total = torch.zeros(NUMEL)
    for step in steps:
        for rank in range(2):
            draw = torch.Generator().manual_seed(10 * step + rank)
            total += torch.randint(-9, 9, (NUMEL,), generator=draw).float()
    return total


@pytest.mark.parametrize("counts", [True, False])
def test_an_exchange_that_has_failed_on_one_rank_alone(ranks: list[Rank], counts: bool) -> None:
    """It counts on the other, or does not, as too few would have taken part."""
    first, second = ranks
    sums = [2 * each for each in together(ranks, lambda rank: rank.exchange(0))]
    assert torch.equal(sums[0], sums[1])
    for each in ranks:
        each.manager.step = 1
    before = [each.owed() for each in ranks]
    has_ended = threading.Event()

    def fails(*_: Any) -> Any:
        assert has_ended.wait(60)  # all has been sent
        raise CommunicationError("the line is gone")

    def body(rank: Rank) -> torch.Tensor:
        found = rank.exchange(1)
        has_ended.set()
        return found

    second.hook._hook.session.end_step = fails  # type: ignore[method-assign]
    ended, _ = together(ranks, body)
    assert first.manager.error is None
    assert "the line is gone" in str(second.manager.error)
    if counts:
        sums[0] += 2 * ended
    for each in ranks:
        each.manager.step += counts  # the second is given the state of the first
    second.hook.is_behind = counts
    meet(2, *ranks)
    more = together(ranks, lambda rank: rank.exchange(2))
    assert torch.equal(more[0], more[1])
    assert torch.equal(sums[0] + 2 * more[0] + first.owed() + second.owed(), computed(0, *[1] * counts, 2))
    assert any(each.any() for each in before)


def test_who_does_not_take_part_brings_zeros_and_the_mean_is_over_the_others(ranks: list[Rank]) -> None:
    for each in ranks:
        each.manager.participants = 1
    ranks[1].manager.takes_part = False
    found = together(ranks, lambda rank: rank.exchange(0))
    draw = torch.Generator().manual_seed(0)
    expected = torch.randint(-9, 9, (NUMEL,), generator=draw).float()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0] + ranks[0].owed(), expected)
    assert not ranks[1].owed().any()


def test_who_cannot_begin_lets_the_others_know(ranks: list[Rank]) -> None:
    first, second = ranks
    second.manager.fails_to_begin = RuntimeError("no state came")
    together(ranks, lambda rank: rank.exchange(0))
    assert str(first.manager.error) == "rank 1 cannot begin its step: no state came"
    second.manager.fails_to_begin = None
    meet(2, *ranks)
    found = together(ranks, lambda rank: rank.exchange(1))
    assert torch.equal(found[0], found[1])
    assert torch.equal(2 * found[0] + first.owed() + second.owed(), computed(1))


def test_who_asks_for_something_else_is_refused_by_name() -> None:
    made = [Rank(0, Compression.topk(0.2)), Rank(1, Compression.int4())]
    made[1].manager.takes_part = False
    meet(1, *made)
    _, refused = together(made, lambda rank: rank.exchange(0))
    assert isinstance(refused, ConfigError)
    assert "this rank, 1, cannot train with the others: compression is " in str(refused)
    assert "ranks [1] are refused: compression is " in str(made[0].manager.error)
    for each in made:
        each.hook.close()
        each.listener.close()
