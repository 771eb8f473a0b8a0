"""Options of Espresso's tree over groups of processes: what they come to is what ranks in one process come to."""

from __future__ import annotations

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.compressors import TopK
from hvd_compress.engines import select
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.frontends.horovod.runtime_selection import hvd as runtime
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, flat_gradient, flat_residual, make_optimizer, make_parameters, place, planned
from tests.parallel.training import ENGINES, STEPS, assert_same_on_all_ranks

OPTIONS = (
    "reduce_scatter@within comp alltoall*@across decomp comp allgather*@across decomp allgather@within",
    "comp gather*@within decomp comp allgather*@across decomp broadcast@within",
)


def train(engine: Engine, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of all steps and the residuals; an even number of ranks is on hosts of two each."""
    size = engine.world_size
    place(engine, tuple(rank // 2 if size % 2 == 0 else rank for rank in range(size)))
    parameters = make_parameters()
    optimizer = make_optimizer(
        parameters, request, lambda: engine, engine.rank, size, settings=Settings(600, timeout_s=300)
    )
    seen = []
    for step in range(STEPS):
        backward(parameters, engine.rank, step)
        optimizer.step()
        seen.append(flat_gradient(parameters).clone())
        optimizer.zero_grad()
    assert {str(decision.path) for decision in hvd.of(optimizer).decisions.values()} == {
        request.policy.plan.default.collective
    }
    return torch.cat(seen), flat_residual(optimizer, parameters)


@pytest.mark.skipif("mpi" not in ENGINES, reason="groups of ranks take MPI, which needs mpirun")
@pytest.mark.parametrize("option", OPTIONS)
def test_a_hierarchical_option(option: str) -> None:
    request = planned(TopK(0.1), option)
    reduced, residual = train(select.choose_engine("mpi", api=runtime), request)
    assert_same_on_all_ranks(reduced)
    assert residual.any()
    expected, remembered = run_ranks(hvd.size(), lambda engine: train(engine, request))[hvd.rank()]
    torch.testing.assert_close(reduced, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(residual, remembered, rtol=1e-5, atol=1e-6)
