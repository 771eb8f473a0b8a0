"""Nothing is exchanged: each rank keeps its own gradient, and is not compared with others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import UsageError
from hvd_compress.frontends.optimizer.reducer import ReduceOptions
from hvd_compress.settings import Settings
from tests.harness import SHAPES, backward, on_engine

STEPS = 3


@pytest.mark.parametrize(
    ("options", "factor"), [({}, 1.0), ({"predivide_factor": 4.0}, 1.0), ({"average": False}, 2.0)], ids=str
)
def test_each_rank_keeps_its_own(options: dict[str, Any], factor: float, caplog: pytest.LogCaptureFixture) -> None:
    def body(engine: InProcessEngine) -> None:
        settings = Settings(600, 60.0, check_every=1)
        parameters, optimizer = on_engine(
            engine, Compression.noop(), settings=settings, options=ReduceOptions(**options)
        )
        for step in range(STEPS):
            expected = own(engine.rank, step)
            backward(parameters, engine.rank, step)
            optimizer.step()
            assert all(torch.equal(each.grad, factor * expected[name]) for name, each in parameters.items())
            optimizer.zero_grad()
            report = of(optimizer).last_step
            assert (report.sent_bytes, report.finite) == (0, True)
        assert {str(each.path) for each in of(optimizer).decisions.values()} == {"noop"}
        with pytest.raises(UsageError, match=r"no plan can say how the bucket .* nothing is exchanged"):
            of(optimizer).save_plan("plan.json")

    with caplog.at_level(logging.WARNING, "hvd_compress"):
        run_ranks(2, body)
    assert [each.getMessage() for each in caplog.records if "noop() exchanges no gradients" in each.getMessage()]


def own(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Return the gradients of a rank in a step, as nobody has exchanged them."""
    parameters = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    backward(parameters, rank, step)
    return {name: each.grad for name, each in parameters.items()}
