"""What is refused before anything is exchanged; jobs are in tests/jobs/test_torchft.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchft.process_group import ProcessGroupGloo

import hvd_compress
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.integrations.torchft import Compression, DistributedDataParallel, LocalSteps, ProcessGroup


def manager_with(group: Any) -> Any:
    return SimpleNamespace(_pg=group, register_state_dict_fn=lambda key, load, save: None)


def made(manager: Any, compression: Any = None, **options: Any) -> list[Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [
        DistributedDataParallel(manager, model, compression),
        LocalSteps(manager, optimizer, model, compression=compression, **options),
    ]


def test_what_is_compressed_is_known_before_the_first_step() -> None:
    for each in made(manager_with(ProcessGroup())):
        assert hvd_compress.of(each) is each.handle
        assert each.handle.last_step is None


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
    if which:
        with pytest.raises(ConfigError, match="every"):
            make(fits, every=0)
        with pytest.raises(UnsupportedError):
            make(fits, compression=Compression.covap())
