"""What is refused before anything is exchanged; jobs are in tests/jobs/test_torchft.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchft.process_group import ProcessGroupGloo

import hvd_compress
from hvd_compress.engines.dialing import Listener
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.integrations.torchft import Compression, DistributedDataParallel, LocalSteps, ProcessGroup
from tests.unit.frontends import managers


class Manager:
    def __init__(self, group: Any) -> None:
        self._pg, self.keys = group, list[str]()

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None:
        self.keys.append(key)


def manager_with(group: Any) -> Any:
    return Manager(group)


def made(manager: Any, compression: Any = None, **options: Any) -> list[Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [
        DistributedDataParallel(manager, model, compression),
        LocalSteps(manager, optimizer, model, compression=compression, **options),
    ]


def test_what_is_compressed_is_known_before_the_first_step() -> None:
    for manager in (manager_with(ProcessGroup()), manager_with(ProcessGroup())):
        for each in made(manager):
            assert hvd_compress.of(each) is each.handle
            assert each.handle.last_step is None
        assert manager.keys == ["hvd_compress 1", "hvd_compress 2"]


class Replica:
    """One whose model has two parts, of which a program may use one."""

    def __init__(self, rank: int) -> None:
        self.rank, self.listener = rank, Listener()
        self.manager: Any = managers.Manager()
        self.manager._pg, self.manager.register_state_dict_fn = ProcessGroup(), lambda key, load, save: None
        self.model = torch.nn.ModuleList([torch.nn.Linear(8, 1, bias=False) for _ in range(2)])
        for each in self.model:
            torch.nn.init.ones_(each.weight)
        self.wrapped = DistributedDataParallel(self.manager, Parts(self.model), Compression.dense())

    @property
    def quorum(self) -> Any:
        return self.manager._pg.quorum

    @quorum.setter
    def quorum(self, quorum: Any) -> None:
        self.manager._pg.quorum = quorum

    def backward(self, used: int) -> list[torch.Tensor | None]:
        self.wrapped(torch.ones(8) * (1 + self.rank), used).backward()
        return [each.weight.grad for each in self.model]


class Parts(torch.nn.Module):
    def __init__(self, parts: torch.nn.ModuleList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor, used: int) -> torch.Tensor:
        return sum((each(x).sum() for each in self.parts[:used]), torch.zeros(()))


def test_what_some_replicas_have_not_used_has_the_same_gradient_on_all() -> None:
    """DDP itself asks nobody else who has used it."""
    made = [Replica(rank) for rank in range(2)]
    managers.meet(1, *made)
    for _ in range(2):
        first, second = managers.together(made, lambda each: each.backward(2 - each.rank))
        for mine, other in zip(first, second, strict=True):
            assert mine is not None
            assert torch.equal(mine, other)
        for each in made:
            each.manager.step += 1
            each.model.zero_grad()
    assert first[1].any()
    for each in made:
        each.wrapped.handle.session.close()
        each.listener.close()


@pytest.mark.parametrize("which", [0, 1])
def test_what_does_not_fit_is_refused(which: int) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def make(manager: Any, **words: Any) -> Any:
        return (
            LocalSteps(manager, optimizer, model, **words)
            if which
            else DistributedDataParallel(manager, model, **words)
        )

    with pytest.raises(ConfigError, match="the manager has a ProcessGroupGloo, by which replicas do not learn"):
        make(manager_with(ProcessGroupGloo()))
    fits = manager_with(ProcessGroup())
    with pytest.raises(ConfigError, match="with torchft there is none but that over sockets: leave it out"):
        make(fits, compression=Compression.int4().by(engine="mpi"))
    with pytest.raises(ConfigError):
        make(fits, compression="int4")
    if not which:
        with pytest.raises(UnsupportedError, match="static_graph=True cuts buckets anew"):
            make(fits, static_graph=True)
    else:
        with pytest.raises(ConfigError, match="every"):
            make(fits, every=0)
        with pytest.raises(UnsupportedError):
            make(fits, compression=Compression.covap())
