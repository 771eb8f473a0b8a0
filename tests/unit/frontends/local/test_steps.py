"""What a program calls, in a job of one rank; tests/jobs/test_local.py has several."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_compress
import hvd_compress.torch as hvd
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.horovod import runtime_selection
from hvd_compress.local import LocalSteps


def train(local: bool) -> list[torch.Tensor]:
    torch.manual_seed(4)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    around = LocalSteps(optimizer, model, every=2, start_after=1) if local else None
    for _ in range(7):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    if around is not None:
        with around.averaged():
            pass
        around.load_state_dict(around.state_dict())
        around.finish()
        assert hvd_compress.of(around) is around.handle
    return [each.detach() for each in model.parameters()]


def test_one_rank_trains_as_without_it_to_the_bit() -> None:
    hvd.init()
    assert all(map(torch.equal, train(local=True), train(local=False)))


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    with pytest.raises(ConfigError, match="pass the module that it was made from"):
        LocalSteps(optimizer, wrapped)
    with pytest.raises(UnsupportedError, match="LBFGS evaluates its closure several times"):
        LocalSteps(torch.optim.LBFGS(model.parameters()), model)
    for wrong in ({"fragments": 0}, {"mix": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            LocalSteps(optimizer, model, **wrong)  # type: ignore[arg-type]
    monkeypatch.setattr(runtime_selection.hvd, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"hvd.init\(\) comes first"):
        LocalSteps(optimizer, model)
