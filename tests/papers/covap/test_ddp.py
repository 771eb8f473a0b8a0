"""COVAP under DDP: what is skipped, what is held, and its interval by the profiled ratio."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from tests.harness import remembered
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.test_program import Layered
from tests.unit.frontends.ddp.test_state import residuals
from tests.unit.frontends.ddp.training import Given, check_ranks_equal, compressed, make_model, optimizer_of, train


@pytest.mark.parametrize("as_view", [True, False])
def test_what_covap_does_not_send_can_be_held(as_view: bool) -> None:
    """As it is with Horovod's front end: no gradient, so that neither momentum nor weight decay moves it."""
    run_ranks(hold, as_view, ranks=2)


def hold(rank: int, as_view: bool) -> None:
    ddp = DistributedDataParallel(Layered(), bucket_cap_mb=0.0001, gradient_as_bucket_view=as_view)
    hc.compress(ddp, hc.Compression.covap(3, shard=False, hold_unsent=True))
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    names = {name: parameter for name, parameter in ddp.module.named_parameters()}
    seen = set()
    for step in range(8):
        before = {name: parameter.detach().clone() for name, parameter in names.items()}
        sgd.zero_grad(set_to_none=step % 2 == 0)
        ddp(torch.randn(8, 13, generator=torch.Generator().manual_seed(10 * rank + step))).square().mean().backward()
        held = {name for name, parameter in names.items() if parameter.grad is None}
        sgd.step()
        assert held == {name for name, parameter in names.items() if torch.equal(parameter, before[name])}
        seen.add(frozenset(held))
        check_ranks_equal(ddp, f"step {step}")
    assert len(seen) > 2, "several buckets take turns"
    assert all(held < set(names) for held in seen)


def test_nan_on_one_rank_in_a_bucket_that_is_skipped() -> None:
    """Nothing of it is communicated in that step, so only this rank knows: it drops the gradient."""
    run_ranks(skip_nan)


def skip_nan(rank: int) -> None:
    request = hc.Compression.covap(2, shard=False)
    ddp = compressed(Given(), request, find_unused_parameters=True, bucket_cap_mb=0.0006)
    optimizer = optimizer_of(ddp)
    for step in range(8):
        # those of the coming step
        skipped = [names for names, decision in hc.of(ddp).decisions.items() if decision.path.collective == "skip"]
        before = remembered(hc.state_dict(ddp))["residuals"]
        optimizer.zero_grad()
        if step == 4 and rank == 1:
            (parameter, *_), *_ = skipped
            handle = ddp.module.get_parameter(parameter).register_hook(lambda g: torch.full_like(g, float("nan")))
            ddp(rank, step).backward()
            handle.remove()
            assert torch.equal(remembered(hc.state_dict(ddp))["residuals"][parameter], before[parameter])
        else:
            ddp(rank, step).backward()
        optimizer.step()
        check_ranks_equal(ddp, step)
        assert (hc.of(ddp).last_step.step, hc.of(ddp).last_step.nonfinite_steps) == (step, 0)
        assert residuals(ddp).isfinite().all()


def test_covap_takes_its_interval_from_it() -> None:
    run_ranks(adaptive, ranks=2, HVD_COMPRESS_ADAPT="1", HVD_COMPRESS_CHECK_EVERY="5")


def adaptive(rank: int) -> None:
    model = compressed(make_model(), hc.Compression.covap("auto"))
    optimizer = optimizer_of(model)
    train(model, optimizer, rank, range(30))
    check_ranks_equal(model, "covap")
    controller = hc.of(model).controller
    assert controller is not None
    assert controller.history is not None
    first = controller.history.events[0]
    assert first.kind == "ccr"
    assert first.reason.startswith("CCR ")
    assert ": interval " in first.reason
