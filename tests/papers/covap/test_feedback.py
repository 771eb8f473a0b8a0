"""Error feedback of what waits for its turn, with a coefficient that grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hvd_compress.papers.covap.compressions import Filtering
from tests.conformance.test_feedback import COEFFICIENTS, SCHEDULE
from tests.harness import alone, backward, flat_residual, gradient, make_optimizer, make_parameters, use


@pytest.mark.parametrize("shard", [False, True])
def test_what_is_not_sent_waits_with_its_residual_shrunk(shard: bool) -> None:
    """COVAP with one bucket, sent in steps 0 and 3: what was given in step 1 comes by 0.75 * 0.75 of it, in step 3.

    In three shards, of 4, 3 and 3 elements, the last one is sent in step 1, and the second in step 2.
    """
    parameters = make_parameters({"w": (10,)})
    asked = replace(Filtering.covap(3, shard=shard), feedback=SCHEDULE)
    optimizer = make_optimizer(parameters, asked, alone, 0, 1)
    sent = (
        (slice(0, 4), slice(7, 10), slice(4, 7), slice(0, 4))
        if shard
        else (slice(0, 10), *[slice(0, 0)] * 2, slice(0, 10))
    )
    residual = torch.zeros(10)
    for step, coefficient in enumerate(COEFFICIENTS[:4]):
        backward(parameters, 0, step)
        optimizer.synchronize()
        residual = gradient("w", (10,), 0, step) + coefficient * residual
        expected = torch.zeros(10)
        expected[sent[step]], residual[sent[step]] = residual[sent[step]], 0
        torch.testing.assert_close(parameters["w"].grad, expected)
        use(parameters.values())
        optimizer.zero_grad()


def test_a_skipped_bucket_that_is_not_finite_keeps_the_whole_residual() -> None:
    parameters = make_parameters({"w": (10,)})
    optimizer = make_optimizer(parameters, replace(Filtering.covap(3), feedback=SCHEDULE), alone, 0, 1)
    for step in range(3):  # sent in step 0
        before = flat_residual(optimizer, parameters)
        (parameters["w"] * gradient("w", (10,), 0, step) * (torch.nan if step == 2 else 1.0)).sum().backward()
        optimizer.synchronize()
        use(parameters.values())
        optimizer.zero_grad()
    assert before.any()
    assert torch.equal(flat_residual(optimizer, parameters), before)
