"""What ranks that take local steps get from the furthest one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_compress.frontends.elastic import apart, trained
from hvd_compress.frontends.elastic.apart import TrainedApart


class Broadcasts:
    """What apart asks of the runtime, of ranks that call it one after the other, the root first."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.own = 0

    def rank(self) -> int:
        return self.own

    def broadcast_object(self, value: Any, root: int, name: str) -> Any:
        if self.own == root:
            self.told[name] = value
        return self.told[name]


class Local:
    """LocalSteps, as far as it is asked."""

    def __init__(self, **moment: int) -> None:
        self._moment = {"steps": 7, "exchanged": 7, "length": 1, **moment}
        self.agreed = SimpleNamespace(state_dict=lambda: {"anchors": {}}, reset=lambda: None)
        self.loaded: list[Any] = []
        self.handle = SimpleNamespace(
            session=SimpleNamespace(step=3),
            state_dict=lambda: "settled",
            load_state_dict=self.loaded.append,
        )
        self.met: list[bool] = []

    def leave(self) -> None:
        pass

    def moment(self) -> dict[str, int]:
        return self._moment

    def meet(self, moment: Any, agreed: Any, *, is_new: bool) -> None:
        assert agreed in (None, {"anchors": {}})
        self.met.append(is_new)


def rank_of(local: Local, steps: int, lr: float, has_synced: bool = True) -> TrainedApart:
    torch.manual_seed(steps)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    made = TrainedApart(model, optimizer, local)  # type: ignore[arg-type]
    made._has_synced = has_synced
    return made


def taken(rank: TrainedApart) -> int:
    """Return the steps that the optimizer remembers."""
    assert rank.optimizer is not None
    return int(next(iter(rank.optimizer.state.values()))["step"]) if rank.optimizer.state else 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Broadcasts:
    made = Broadcasts()
    for module in (apart, trained):
        monkeypatch.setattr(module, "hvd", made)
    monkeypatch.setattr(apart, "known", lambda: "a member")
    monkeypatch.setattr(trained, "together", lambda states, other, handle: other)
    return made


CASES = [
    ("has come", {"steps": 0, "exchanged": 0}, 1, False, 7),
    ("has come, with an old checkpoint", {"steps": 4, "exchanged": 0}, 1, False, 7),
    ("has come into a round", {"steps": 0, "exchanged": 0}, 4, False, 7),
    ("is behind by a synchronous step", {"steps": 6, "exchanged": 6}, 1, True, 7),
    ("is behind by an exchange of a round", {"steps": 7, "exchanged": 6}, 4, True, 6),
    ("has come, and taken a step with ranks that are gone", {"steps": 8, "exchanged": 8}, 1, True, 7),
    ("is as far", {"steps": 7, "exchanged": 7}, 4, True, 6),
]


@pytest.mark.parametrize(
    ("own", "length", "has_synced", "expected"), [each[1:] for each in CASES], ids=[c[0] for c in CASES]
)
def test_the_state_of_the_optimizer(
    runtime: Broadcasts, own: dict[str, int], length: int, has_synced: bool, expected: int
) -> None:
    """Of synchronous steps it is the same on all ranks, of local ones each rank's own."""
    first, second = Local(length=length), Local(**own)
    root, other = rank_of(first, 7, 0.5), rank_of(second, 6, 0.1, has_synced)
    for runtime.own, rank in enumerate((root, other)):
        rank.sync(0, whole=True)
    is_new = not has_synced or own["exchanged"] > 7
    assert other.optimizer is not None
    assert other.optimizer.param_groups[0]["lr"] == 0.5
    assert taken(other) == expected
    assert (first.met, second.met) == ([False], [is_new])
    assert second.loaded == (["settled"] if is_new else [])
    if expected == 7:
        assert root.model is not None
        assert other.model is not None
        assert torch.equal(root.model.weight, other.model.weight)


@pytest.mark.parametrize(("steps", "expected"), [(0, 7), (4, 6)])
def test_ranks_that_all_begin(runtime: Broadcasts, steps: int, expected: int) -> None:
    """They take what the first has; or go on, each from its own checkpoint, in the middle of a round."""
    first, second = Local(steps=steps), Local(steps=steps)
    root, other = rank_of(first, 7, 0.5, has_synced=False), rank_of(second, 6, 0.1, has_synced=False)
    for runtime.own, rank in enumerate((root, other)):
        rank.sync(0, whole=True)
    assert taken(other) == expected
    assert first.met == second.met == [True] * (steps == 0)  # over the ranks that there are now
