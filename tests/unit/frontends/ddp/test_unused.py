"""A parameter that no rank uses has no gradient, as with plain DDP, and what was not sent of it waits."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from tests.harness import remembered
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import REQUESTS, check_ranks_equal, flat

MOVED_BY_NOTHING = range(4, 10)


class Heads(torch.nn.Module):
    """Two heads over one body, of which a step uses one, or both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Linear(13, 64)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(64, 5) for _ in range(2))

    def forward(self, batch: torch.Tensor, used: tuple[int, ...]) -> torch.Tensor:
        found = self.body(batch).tanh()
        return sum((self.heads[each](found).square().mean() for each in used), torch.zeros(()))


def wrapped(request: object = None) -> DistributedDataParallel:
    ddp = DistributedDataParallel(Heads(), find_unused_parameters=True, bucket_cap_mb=0.002)
    return ddp if request is None else hc.compress(ddp, request)


def step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, number: int, *used: int) -> None:
    optimizer.zero_grad()
    ddp(torch.randn(8, 13, generator=torch.Generator().manual_seed(100 * rank + number)), used).backward()
    optimizer.step()


def test_a_head_that_no_rank_uses_stays_where_it_is() -> None:
    """Under momentum and weight decay, which would move it by a gradient of zeros."""
    run_ranks(leave_out, ranks=2)


def leave_out(rank: int) -> None:
    for name, request in REQUESTS.items():
        ddp = wrapped(request)
        sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        head = ddp.module.heads[1]
        owed: dict[str, torch.Tensor] = {}
        for number in range(12):
            unused = number in MOVED_BY_NOTHING
            before = flat(head)
            step(ddp, sgd, rank, number, *((0,) if unused else (0, 1)))
            check_ranks_equal(ddp, f"{number} of {name}")
            found = remembered(hc.state_dict(ddp))["residuals"]
            assert torch.equal(flat(head), before) == unused, (name, number)
            if unused:
                assert all(parameter.grad is None for parameter in head.parameters()), (name, number)
                assert all(torch.equal(found[key], each) for key, each in owed.items()), (name, number)
            owed = {key: each for key, each in found.items() if key.startswith("heads.1")}


def test_heads_that_take_turns_under_adam_train_as_without_compression() -> None:
    run_ranks(take_turns, ranks=2)


def take_turns(rank: int) -> None:
    found = {}
    for request in (None, hc.Compression.dense(), hc.Compression.int8(), hc.Compression.int4()):
        ddp = wrapped(request)
        adam = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        for number in range(30):
            step(ddp, adam, rank, number, number % 2)
        found[str(request)] = flat(ddp)
    begun = flat(wrapped())
    plain, dense, *others = found.values()
    assert torch.equal(dense, plain)
    for other, most in zip(others, (0.02, 0.2), strict=True):
        assert (other - plain).norm() < most * (plain - begun).norm()
