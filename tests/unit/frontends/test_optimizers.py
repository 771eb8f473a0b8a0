"""Learning rates of the optimizers that train a model, and a momentum that the compression has, too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import hvd_compress.ddp as hc
from hvd_compress.compression import Compression
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.optimizers import check_momentum, learning_rates_of
from hvd_compress.optim import DeMo, OneBitAdam
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import REQUESTS
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import compressed, loss_of, make_model

PARAMETERS = [torch.nn.Parameter(torch.zeros(3))]
OPTIMIZERS: dict[str, Any] = {
    "plain": lambda: torch.optim.SGD(PARAMETERS, lr=0.1),
    "momentum": lambda: torch.optim.SGD(PARAMETERS, lr=0.1, momentum=0.9),
    "other momentum": lambda: torch.optim.SGD(PARAMETERS, lr=0.1, momentum=0.5, nesterov=True),
    "of a group": lambda: torch.optim.SGD([{"params": PARAMETERS, "momentum": 0.5}], lr=0.1),
    "adam": lambda: torch.optim.AdamW(PARAMETERS),
    "rmsprop": lambda: torch.optim.RMSprop(PARAMETERS),
    "1-bit adam": lambda: OneBitAdam(PARAMETERS, warmup_steps=1),
    "demo": lambda: DeMo(PARAMETERS),
    "odd": lambda: odd(),
}


def odd() -> torch.optim.Optimizer:
    """One whose groups have names without values."""
    optimizer = torch.optim.SGD(PARAMETERS, lr=0.1)
    optimizer.param_groups[0].update(momentum=None, betas=None)
    del optimizer.param_groups[0]["dampening"]
    return optimizer


TAKEN = {
    "int4": [*OPTIMIZERS],
    "demo": ["plain", "rmsprop", "demo", "odd"],
    "momentum": ["plain", "momentum", "1-bit adam", "demo", "odd"],
    "momentum of another optimizer": ["plain", "demo", "odd"],
    **{name: taken or [*OPTIMIZERS] for name, (_, taken) in brought("MOMENTA")},
}
"""Optimizers with which a compression trains rightly."""
REQUESTED = {
    "int4": Compression.int4(),
    "demo": Compression.demo(),
    "momentum": Compression.momentum(0.9, warmup_steps=3),
    "momentum of another optimizer": Compression.momentum(0.95),
    **{name: request for name, (request, _) in brought("MOMENTA")},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", TAKEN)
def test_two_momenta_are_refused(name: str, optimizer: str) -> None:
    compressor, made = REQUESTED[name].compressor, OPTIMIZERS[optimizer]()
    if optimizer in TAKEN[name]:
        check_momentum(compressor, made)
    else:
        with pytest.raises(ConfigError, match=r"(has a momentum of its own|adapts to squares).* has a momentum, too: "):
            check_momentum(compressor, made)


def test_one_that_accelerate_has_wrapped_is_looked_into() -> None:
    class Wrapper:
        optimizer = OPTIMIZERS["momentum"]()
        param_groups = optimizer.param_groups

    with pytest.raises(ConfigError, match=r"SGD has a momentum of its own \(0\.9\), and DeMo.* has a momentum, too"):
        check_momentum(REQUESTED["demo"].compressor, Wrapper())


def test_learning_rates_are_those_of_all_that_are_alive() -> None:
    two = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in (0.1, 0.2)]
    first, second = torch.optim.SGD(two, lr=1.0), OPTIMIZERS["plain"]()
    rates = learning_rates_of([first, second])
    assert rates() == [0.1, 0.2, 0.1]
    first.param_groups[1]["lr"] = 0.3
    assert rates() == [0.1, 0.3, 0.1]
    del second
    assert rates() == [0.1, 0.3]


def test_what_a_plan_names_counts(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"version": 1, "default": {"compressor": {"name": "demo", "k": 4}, "collective": "auto"}}')
    handle = Handle({"weight": PARAMETERS[0]}, Compression.plan(file), Settings(), lambda: pytest.fail("connects"))
    with pytest.raises(ConfigError, match=r"SGD has a momentum of its own \(0\.9\), and DeMo"):
        handle.follow(OPTIMIZERS["momentum"]())
    handle.follow(OPTIMIZERS["plain"]())


def test_under_ddp_it_is_told_once_or_checked() -> None:
    assert run_ranks(tell, ranks=2) == [1, 0]


def tell(rank: int) -> int:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hvd_compress").addHandler(handler)
    ddp = compressed(make_model(), "demo")
    for step in range(2):
        loss_of(ddp, rank, step).backward()
    known = compressed(make_model(), "demo")
    with pytest.raises(ConfigError, match=r"SGD has a momentum of its own \(0\.5\), and DeMo\("):
        hc.of(known).follow_learning_rate(torch.optim.SGD(known.parameters(), lr=0.1, momentum=0.5))
    hc.of(known).follow_learning_rate(DeMo(known.parameters()))
    loss_of(known, rank, 0).backward()
    return sum("an optimizer with another one of its own would train with both" in line for line in lines)


def test_the_drop_in_refuses_them() -> None:
    """As ReducingOptimizer does when it is made; tests/parallel has a whole program."""
    from hvd_compress.frontends.optimizer.named_parameters import name_parameters
    from hvd_compress.frontends.optimizer.optimizer import wrap
    from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
    from hvd_compress.settings import Settings

    named = {"weight": PARAMETERS[0]}
    sgd = OPTIMIZERS["momentum"]()
    reducer = Reducer(named, REQUESTS["demo"], lambda: pytest.fail("connects"), ReduceOptions(), Settings())
    with pytest.raises(ConfigError, match="SGD has a momentum of its own"):
        wrap(sgd, name_parameters(sgd, named.items()), reducer, 1, 0, 2)
