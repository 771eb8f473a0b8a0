"""A warm-up by another compressor: who travels how in which step, and that what is remembered goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import BlockQuantizer, Cast, CompressedMomentum, DenseMomentum
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.policies import Warmup
from hvd_compress.request.request import Request
from tests.harness import SHAPES, alone, backward, gradient, make_optimizer, make_parameters, on_engine, remembered

STEPS = 3
REQUEST = Request(BlockQuantizer(8), "alltoall-allgather", policy=Warmup(Cast(), STEPS))
MOMENTUM = Request(CompressedMomentum(0.9, BlockQuantizer(4)), policy=Warmup(DenseMomentum(), STEPS))


def test_each_step_travels_as_its_number_says() -> None:
    def body(engine: InProcessEngine) -> tuple[list[set[str]], list[int]]:
        parameters, optimizer = on_engine(engine, REQUEST)
        collectives, sent = [], []
        for step in range(6):
            backward(parameters, engine.rank, step)
            optimizer.step()
            collectives.append(
                {decision.collective for decision in of(optimizer).decisions.values()}
            )  # of the coming step
            sent.append(of(optimizer).last_step.sent_bytes)
            optimizer.zero_grad()
        return collectives, sent

    for collectives, sent in run_ranks(2, body):
        assert collectives == [{"dense"}] * (STEPS - 1) + [{"alltoall-allgather"}] * 4
        assert sent[:STEPS] == [sent[0]] * STEPS
        assert max(sent[STEPS:]) < sent[0]


def test_what_the_warm_up_has_built_is_what_comes_next_begins_with() -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor]:
        parameters, optimizer = on_engine(engine, MOMENTUM)
        kept = []
        for step in range(STEPS + 1):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
            kept.append(remembered(optimizer.state_dict()["hvd_compress"])["states"]["gradient:momentum"])
        before, after = (torch.cat([state[name] for name in SHAPES]) for state in kept[-2:])
        return before, after

    before, after = run_ranks(2, body)[0]
    gradients = [torch.cat([gradient(n, s, rank, STEPS).reshape(-1) for n, s in SHAPES.items()]) for rank in range(2)]
    assert before.abs().max() > 0.3, "or it would make no difference"
    torch.testing.assert_close(after, 0.9 * before + 0.1 * sum(gradients) / 2, rtol=0.0, atol=0.1)


def test_a_plan_is_saved_after_it(tmp_path: Path) -> None:
    parameters, optimizer = on_engine(alone(), MOMENTUM)
    for step in range(STEPS):
        if step:
            with pytest.raises(UsageError, match=r"for the time being \(warm-up of 3 steps\): train more steps"):
                of(optimizer).save_plan(tmp_path / "plan.json")
        backward(parameters, 0, step)
        optimizer.step()
        optimizer.zero_grad()
    of(optimizer).save_plan(tmp_path / "plan.json")
    assert '"name": "momentum"' in (tmp_path / "plan.json").read_text()


def test_float64_is_sent_dense_all_the_time() -> None:
    parameters = make_parameters(dtype=torch.float64)
    optimizer = make_optimizer(parameters, MOMENTUM, alone, 0, 1)
    for step in range(STEPS + 2):
        backward(parameters, 0, step)
        optimizer.synchronize()
        assert {decision.compressor for decision in of(optimizer).decisions.values()} == {Cast()}
        optimizer.zero_grad()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "4"])
def test_it_takes_a_number_of_steps(steps: object) -> None:
    with pytest.raises(ConfigError, match=r"steps of the warm-up = .* is not a whole number"):
        Warmup(Cast(), steps)  # type: ignore[arg-type]
