"""Sparse gradients travel by their rows."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import UnsupportedError
from hvd_compress.frontends.optimizer.reducer import ReduceOptions
from tests.harness import REQUESTS, alone, make_optimizer

DENSE = REQUESTS["dense"]


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_are_averaged(sparse_as_dense: bool) -> None:
    rows = {0: [1, 3, 3], 1: [3, 5]}

    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        optimizer = make_optimizer(
            parameters, DENSE, lambda: engine, engine.rank, 2, options=ReduceOptions(sparse_as_dense=sparse_as_dense)
        )
        for _ in range(2):
            looked_up = torch.nn.functional.embedding(torch.tensor(rows[engine.rank]), parameters["table"], sparse=True)
            (looked_up * parameters["weight"]).sum().backward()
            optimizer.synchronize()
            result = parameters["table"].grad
            optimizer.zero_grad()
        return result

    expected = torch.zeros(8, 4)
    expected[[1, 3, 5]] = torch.tensor([0.5, 1.5, 0.5]).reshape(3, 1)
    for result in run_ranks(2, body):
        assert result.is_sparse
        assert torch.equal(result.to_dense(), expected)


def test_a_rank_without_sparse_gradient_contributes_no_rows() -> None:
    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2)
        loss = parameters["weight"].sum()
        if engine.rank == 1:
            loss = loss + torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum()
        loss.backward()
        optimizer.synchronize()
        return parameters["table"].grad.to_dense()

    for result in run_ranks(2, body):
        assert result[2].tolist() == [0.5] * 4
        assert result.sum() == 2.0


def test_a_gradient_that_turns_sparse_is_refused() -> None:
    parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4))}
    optimizer = make_optimizer(parameters, DENSE, alone, 0, 1)
    parameters["table"].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(UnsupportedError, match="pass sparse_as_dense=True"):
        torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum().backward()


def test_a_dense_gradient_of_a_sparse_parameter_is_exchanged_by_its_rows() -> None:
    """Sparse on rank 0, dense on rank 1, as with a table that is also an output layer there."""

    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4))}
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2)
        if engine.rank == 0:
            torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum().backward()
        else:
            parameters["table"].sum().backward()
        optimizer.synchronize()
        return parameters["table"].grad.to_dense()

    for result in run_ranks(2, body):
        assert result[2].tolist() == [1.0] * 4
        assert result[0].tolist() == [0.5] * 4


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_results_are_sparse_on_all_ranks_or_on_none(sparse_as_dense: bool) -> None:
    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        options = ReduceOptions(sparse_as_dense=sparse_as_dense)
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2, options=options)
        loss = parameters["weight"].sum()
        if engine.rank == 1:
            loss = loss + torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum()
        loss.backward()
        optimizer.synchronize()
        return parameters["table"].grad.is_sparse

    assert run_ranks(2, body) == [True, True]


def test_rows_that_are_not_finite_are_told_by_the_name_of_their_parameter(caplog: pytest.LogCaptureFixture) -> None:
    def body(engine: InProcessEngine) -> tuple[bool, int]:
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2)
        factor = float("nan") if engine.rank else 1.0
        looked_up = torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True)
        (looked_up.sum() * factor + parameters["weight"].sum()).backward()
        optimizer.synchronize()
        return of(optimizer).last_step.finite, of(optimizer).last_step.nonfinite_steps

    assert run_ranks(2, body) == [(False, 1)] * 2
    (record,) = caplog.records
    assert "in bucket 1 (table)" in record.getMessage()
