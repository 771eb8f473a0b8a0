"""The optimizers of hvd_compress.optim under DDP: they train, ranks stay equal, and a checkpoint goes on to the bit."""

from __future__ import annotations

import copy

import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.optim import DeMo, OneBitAdam
from hvd_compress.request.request import Request
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.test_state import through_a_file
from tests.unit.frontends.ddp.training import check_ranks_equal, compressed, flat, loss_of, make_model

WARMUP = 6
NAMES = ("onebit-adam", "demo")


def made(name: str, model: torch.nn.Module) -> tuple[torch.optim.Optimizer, Request]:
    if name == "demo":
        demo = DeMo(model.parameters(), lr=0.01)
        return demo, demo.compression(8, 16)
    adam = OneBitAdam(model.parameters(), lr=0.01, betas=(0.9, 0.95), warmup_steps=WARMUP)
    return adam, adam.compression()


def wrapped(name: str, seed: int = 0, **options: bool) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    model = make_model(seed)
    optimizer, request = made(name, model)
    return compressed(model, request, **options), optimizer


def train(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        loss.backward()
        optimizer.step()
        check_ranks_equal(ddp, step)
        losses.append(loss.item())
    return losses


def test_they_train() -> None:
    run_ranks(train_with_each)


def train_with_each(rank: int) -> None:
    for name in NAMES:
        ddp, optimizer = wrapped(name)
        losses = train(ddp, optimizer, rank, range(30))
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), f"{name}: {losses}"
        assert len(hc.of(ddp).decisions) > 1, "buckets were cut anew after the first step"


def test_to_resume_is_to_go_on_to_the_bit() -> None:
    run_ranks(resume)


def resume(rank: int) -> None:
    """In the warm-up, and after it. DDP does not cut its buckets anew: blocks of elements would begin elsewhere."""
    for name in NAMES:
        for saved_at in (3, 9):
            going, optimizer = wrapped(name, find_unused_parameters=True)
            train(going, optimizer, rank, range(saved_at))
            kept = copy.deepcopy((going.module.state_dict(), optimizer.state_dict(), hc.state_dict(going)))
            train(going, optimizer, rank, range(saved_at, 12))
            again, anew = wrapped(name, seed=3, find_unused_parameters=True)
            saved = through_a_file(kept)
            again.module.load_state_dict(saved[0])
            anew.load_state_dict(saved[1])
            hc.load_state_dict(again, saved[2])
            train(again, anew, rank, range(saved_at, 12))
            assert torch.equal(flat(again), flat(going)), (name, saved_at)
