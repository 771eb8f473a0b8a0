"""Trains by local steps, saves in the middle of a round, and goes on from there: the bits are those of one training.

usage: local_steps.py
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch

import hvd_compress
import hvd_compress.torch as hvd
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


hvd.init()
unkept()
whole, saved = train()
resumed, _ = train(saved)
assert torch.equal(whole, resumed)
print(f"[rank {hvd.rank()}] is done", flush=True)
hvd.shutdown()
