"""Ranks that do not mean the same: every rank raises the same error, which names them, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.errors import CommunicationError, ConfigError
from tests.parallel.training import ENGINES, assert_same_on_all_ranks, finish, flat, maker, sgd, small_model, train


def first_step(parameters: dict[str, nn.Parameter], compression: Any, **options: Any) -> Any:
    """Take a first step with gradients of 1, and return the optimizer."""
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), compression, **options)
    sum(parameter.sum() for parameter in parameters.values()).backward()
    optimizer.step()
    return optimizer


def plain(shapes: Iterable[tuple[str, tuple[int, ...]]] = (("a", (3, 4)), ("b", (5,)))) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.ones(shape)) for name, shape in shapes}


def odd() -> bool:
    """Whether this is the last rank, which does everything in another way here."""
    return hvd.rank() == hvd.size() - 1


def on(ranks: Iterable[int]) -> str:
    """How a message names ranks."""
    numbers = [str(rank) for rank in ranks]
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(numbers)


SETTINGS: dict[str, tuple[Callable[[bool], Any], tuple[str, str]]] = {
    "ratio": (lambda other: {"compression": hvd.Compression.topk(0.2 if other else 0.1)}, ("ratio=0.1", "ratio=0.2")),
    "collective": (
        lambda other: {"compression": hvd.Compression.topk(0.1).by(collective="var" if other else "star")},
        ("collective='star'", "collective='var'"),
    ),
    "compressor": (
        lambda other: {"compression": hvd.Compression.efsign() if other else hvd.Compression.dense()},
        ("Cast", "EFSign"),
    ),
    "op": (
        lambda other: {"compression": hvd.Compression.topk(0.1), "op": hvd.Sum if other else hvd.Average},
        ("average=True", "average=False"),
    ),
    "passes": (
        lambda other: {"compression": hvd.Compression.topk(0.1), "backward_passes_per_step": 2 if other else 1},
        ("backward_passes_per_step=1", "backward_passes_per_step=2"),
    ),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_that_differ(key: str) -> None:
    arguments, (most, last) = SETTINGS[key]
    everybody, loner = on(range(hvd.size() - 1)), on([hvd.size() - 1])
    with pytest.raises(ConfigError, match="settings differ between ranks") as caught:
        first_step(plain(), **arguments(odd()))
    message = str(caught.value)
    first, _, second = message.partition(f"on {everybody}")
    assert most in first
    assert last in second
    assert message.endswith(f"on {loner}")
    assert f"rank {hvd.rank()}, first step, handshake" in message
    check_that_training_works()


def test_fusion_thresholds_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "2000" if odd() else "1000")
    everybody, loner = on(range(hvd.size() - 1)), on([hvd.size() - 1])
    expected = f"HOROVOD_FUSION_THRESHOLD is 1000 on {everybody} and 2000 on {loner}"
    with pytest.raises(ConfigError, match=expected):
        first_step(plain(), hvd.Compression.topk(0.1))


PARAMETERS: dict[str, tuple[Callable[[], dict[str, nn.Parameter]], str]] = {
    "shape": (lambda: plain([("a", (4, 3)), ("b", (5,))]), r"'a: \(3, 4\) torch.float32' where .* 'a: \(4, 3\)"),
    "name": (lambda: plain([("c", (3, 4)), ("b", (5,))]), "'a: .*' where .* 'c: "),
    "order": (lambda: plain([("b", (5,)), ("a", (3, 4))]), "'a: .*' where .* 'b: "),
    "more": (lambda: plain([("a", (3, 4)), ("b", (5,)), ("c", (1,))]), "rank 0 has 2 of them, .* has 3"),
    "fewer": (lambda: plain([("a", (3, 4))]), "rank 0 has 2 of them, .* has 1"),
    "dtype": (lambda: {**plain(), "b": nn.Parameter(torch.ones(5).double())}, "torch.float32' where .*torch.float64'"),
    "frozen": (lambda: {**plain(), "b": nn.Parameter(torch.ones(5), requires_grad=False)}, "2 of them, .* has 1"),
}


@pytest.mark.parametrize("key", PARAMETERS)
def test_parameters_that_differ(key: str) -> None:
    other, detail = PARAMETERS[key]
    expected = f"{on([hvd.size() - 1])} optimizes other parameters than rank 0.*: .*{detail}"
    with pytest.raises(ConfigError, match=expected):
        first_step(other() if odd() else plain(), hvd.Compression.topk(0.1))
    check_that_training_works()


@pytest.mark.skipif(len(ENGINES) == 1, reason="without mpirun there is one engine")
@pytest.mark.parametrize("others", ENGINES)
def test_engines_that_differ(others: str) -> None:
    engine = "auto" if odd() else others
    expected = rf"the same engine, but they asked for '{others}' on ranks \[0.*'auto' on ranks \[{hvd.size() - 1}\]"
    with pytest.raises(ConfigError, match=expected):
        first_step(plain(), hvd.Compression.topk(0.1).by(engine=engine))
    check_that_training_works()


def test_one_difference_does_not_hide_another() -> None:
    ratio = 0.2 if odd() else 0.1
    with pytest.raises(ConfigError, match=r"compression is .*; options is "):
        first_step(plain(), hvd.Compression.topk(ratio), op=hvd.Sum if odd() else hvd.Average)


def test_after_the_error_the_optimizer_says_why_it_does_nothing() -> None:
    parameters = plain()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    request = hvd.Compression.topk(0.2 if odd() else 0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), request)
    parameters["a"].sum().backward()
    with pytest.raises(ConfigError, match="settings differ"):
        optimizer.step()
    with pytest.raises(CommunicationError, match=r"earlier exchange failed: .*settings differ"):
        optimizer.step()


def test_names_may_come_in_another_order_than_the_optimizers() -> None:
    """What counts is the optimizer's order; that of named_parameters does not."""
    parameters = plain()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    named = list(parameters.items())
    optimizer = hvd.DistributedOptimizer(optimizer, named[::-1] if odd() else named, hvd.Compression.topk(0.1))
    parameters["b"].sum().backward()
    optimizer.step()
    assert_same_on_all_ranks(flat(parameters.values()))


def test_gradients_may_become_ready_in_another_order() -> None:
    """The order of rank 0 counts, also where one rank has no gradient at all in the first step."""
    parameters = plain()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), hvd.Compression.topk(0.1))
    for step in range(3):
        names = ["a", "b"] if odd() else ["b", "a"]
        for name in names if step or not odd() else []:
            (parameters[name].sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_same_on_all_ranks(flat(parameters.values()))


def check_that_training_works() -> None:
    model = small_model()
    finish(train(maker(hvd.Compression.topk(0.1))(sgd(model), model), model))
    assert_same_on_all_ranks(flat(model.parameters()))
