"""Trains by local steps, saves in the middle of a round, and goes on from there: the bits are those of one training.

usage: local_steps.py
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import hvd_compress
import hvd_compress.torch as hvd
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.local import LocalSteps

Path(os.environ["JOB_FOLDER"], f"{os.getpid()}.pid").write_text(str(os.getpid()))
STEPS, STOP = 30, 17


def train(saved: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the parameters after all steps, and a checkpoint after `STOP`; or go on from that."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    local = LocalSteps(optimizer, model, every=4, start_after=5, fragments=2, delay=1, mix=0.5)
    parts = {"model": model, "optimizer": optimizer, "local": local}
    for name, part in parts.items() if saved is not None else ():
        part.load_state_dict(copy.deepcopy(saved[name]))
    for step in range(STEPS if saved is None else STEPS - STOP):
        if saved is None and step == STOP:
            checkpoint = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        generator = torch.Generator().manual_seed(100 * (step + (STOP if saved else 0)) + hvd.rank())
        inputs = torch.randn(32, 20, generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
    with local.averaged():
        mean = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    means = hvd.allgather(mean.reshape(1, -1))
    assert all(torch.equal(means[0], each) for each in means)
    assert hvd_compress.of(local).last_step.sent_bytes > 0
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), saved or checkpoint


def unkept() -> None:
    """Nobody keeps the object, and parameters come last: ranks agree on them, and exchange, all the same."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LocalSteps(optimizer, model, every=1, start_after=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model(torch.full((4,), 1.0 + hvd.rank())).sum().backward()
    optimizer.step()
    found = hvd.allgather(model.weight.detach())
    assert torch.equal(found[:1], found[1:])


def uneven() -> None:
    """Ranks have other numbers of batches: they end with one model, whose statistics are the mean of all."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = LocalSteps(optimizer, model, every=4, start_after=2, delay=2)
    for _ in range(9 + 5 * hvd.rank()):
        optimizer.zero_grad()
        model(torch.randn(8, 4) + hvd.rank()).square().mean().backward()
        optimizer.step()
    local.finish()
    everything = torch.cat([each.flatten() for each in model.state_dict().values() if each.is_floating_point()])
    found = hvd.allgather(everything.reshape(1, -1))
    assert torch.equal(found[:1], found[1:])
    assert hvd_compress.of(local).metrics()["local/spread"] > 0
    model[1].running_mean += hvd.rank()
    own = model[1].running_mean.clone()
    with local.averaged():
        assert torch.equal(model[1].running_mean, hvd.allreduce(own, name="mean"))
    assert torch.equal(model[1].running_mean, own)


def refused() -> None:
    """What would take ranks apart without a word is an error on the rank that does it, and ranks end."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LocalSteps(optimizer, model, every=3, start_after=0)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    model[0].weight.requires_grad_(True)
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(UnsupportedError, match="frozen or absent"):
        optimizer.step()
    with pytest.raises(UsageError, match="takes local steps already"):
        LocalSteps(optimizer, model)


def others_than_ranks() -> None:
    """Other settings are an error on all ranks."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LocalSteps(optimizer, model, every=3 + hvd.rank(), start_after=0)
    with pytest.raises(ConfigError, match=r"every=[34].*every=[34]"):
        optimizer.step()


def by_closure() -> None:
    """Gradients that a closure computes within the step are those that are exchanged."""
    found = []
    for is_closure in (True, False):
        torch.manual_seed(3)
        model = torch.nn.Linear(6, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        local = LocalSteps(optimizer, model, every=3, start_after=3)
        for step in range(8):
            inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))

            def closure(model: torch.nn.Module = model, inputs: torch.Tensor = inputs) -> torch.Tensor:
                model.zero_grad()
                loss = model(inputs).square().mean()
                loss.backward()
                return loss

            expected = closure().item()
            assert (optimizer.step(closure) if is_closure else optimizer.step()) == (expected if is_closure else None)
        local.finish()
        found.append(model.weight.detach().clone())
    ranks = hvd.allgather(found[0])
    assert torch.equal(*found)
    assert torch.equal(ranks[:2], ranks[2:])


def automatic() -> None:
    """Ranks choose alike, by figures that differ from rank to rank, and say why."""
    model = torch.nn.Linear(50, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    local = LocalSteps(optimizer, model, every="auto", start_after=2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 50) + hvd.rank()).square().mean().backward()
        optimizer.step()
    reasons = hvd.allgather_object(local.reason)
    assert reasons[0].startswith("every="), reasons
    assert len(set(reasons)) == 1, reasons


hvd.init()
unkept()
uneven()
refused()
others_than_ranks()
by_closure()
automatic()
whole, saved = train()
resumed, _ = train(saved)
assert torch.equal(whole, resumed)
print(f"[rank {hvd.rank()}] is done", flush=True)
hvd.shutdown()
