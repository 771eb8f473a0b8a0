"""Two optimizers over the same parameters: the one that was wrapped last exchanges their gradients."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import of
from hvd_compress.errors import UsageError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.frontends.optimizer.watchers import taking_over
from tests.harness import REQUESTS, alone, backward, make_optimizer, make_parameters

DENSE = REQUESTS["dense"]
PATIENCE_S = 120.0


def wrap(parameters: dict[str, torch.nn.Parameter]) -> ReducingOptimizer:
    with taking_over(parameters.values()):
        return make_optimizer(parameters, DENSE, alone, 0, 1)


def step(optimizer: ReducingOptimizer, parameters: dict[str, torch.nn.Parameter], number: int) -> None:
    optimizer.zero_grad()
    backward(parameters, 0, number)
    optimizer.step()


def test_the_earlier_one_retires() -> None:
    parameters = make_parameters()
    old = wrap(parameters)
    step(old, parameters, 0)
    new = wrap(parameters)
    step(new, parameters, 1)
    for call in (old.step, old.synchronize):
        with pytest.raises(UsageError, match=rf"{call.__name__}\(\) of an optimizer that was replaced.*use that one"):
            call()
    with old.skip_synchronize(), pytest.raises(UsageError, match="replaced"):
        old.step()
    with pytest.raises(UsageError, match=r"rollout\(\) of an optimizer that was replaced"):
        old.rollout(lambda: None, torch.nn.Linear(1, 1))
    assert of(old).last_step.step == 0
    for worker in (old._reducer.session._pipeline._kernels, old._reducer.session._pipeline._collectives):
        worker._thread.join(PATIENCE_S)
        assert not worker._thread.is_alive()


def test_one_common_parameter_is_enough_and_others_are_left_alone() -> None:
    parameters, others = make_parameters(), make_parameters()
    old, apart = wrap(parameters), wrap(others)
    wrap({"odd": parameters["odd"]})
    with pytest.raises(UsageError, match="replaced"):
        old.step()
    step(apart, others, 0)


def test_not_while_gradients_are_exchanged() -> None:
    parameters = make_parameters()
    old = wrap(parameters)
    backward(parameters, 0, 0)
    with pytest.raises(UsageError, match=r"again after backward\(\).*call synchronize\(\) first"):
        wrap(parameters)
    old.synchronize()
    backward(parameters, 0, 1)
    with pytest.raises(UsageError, match=r"again after backward"), taking_over(parameters.values()):
        raise AssertionError("the block begins although gradients are exchanged")
    old.synchronize()


def test_a_parameter_that_was_frozen_is_one_of_the_earlier_optimizers() -> None:
    parameters = make_parameters()
    parameters["odd"].requires_grad_(False)
    old = wrap(parameters)
    wrap({"odd": parameters["odd"].requires_grad_(True)})
    with pytest.raises(UsageError, match="replaced"):
        old.step()
    step(wrap(parameters), parameters, 1)


def test_an_optimizer_whose_exchange_failed_can_be_replaced() -> None:
    parameters = make_parameters()
    old = wrap(parameters)
    backward(parameters, 0, 0)
    with pytest.raises(UsageError, match="more than backward_passes_per_step"):
        backward(parameters, 0, 1)
    step(wrap(parameters), parameters, 2)
    with pytest.raises(UsageError, match="replaced"):
        old.step()


def test_a_wrapping_that_fails_changes_nothing() -> None:
    parameters = make_parameters()
    old = wrap(parameters)
    with pytest.raises(ZeroDivisionError), taking_over(parameters.values()):
        raise ZeroDivisionError
    step(old, parameters, 0)
