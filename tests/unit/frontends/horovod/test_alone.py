"""Without a launcher a program of Horovod is one rank: plain training, to the bit, whatever the compression."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.brought import brought

ROOT = Path(__file__).parents[4]

PROGRAM = """
import torch
import hvd_compress.torch as hvd
from hvd_compress.optim import DeMo, OneBitAdam
from tests.brought import brought

hvd.init()

def train(compression=None, make=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    optimizer = make(model.parameters())
    if compression is not None:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 13)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

C = hvd.Compression
more = (request for _, request in (*brought("FIXED"), *brought("ADAPTIVE")))
plain = train()
one = C.per_bucket(lambda _: C.int4())
chosen = (C.int4(), C.topk(0.01), C.powersgd(), one, C.auto(), C.bf16(), C.dense())
for request in (*chosen, *more):
    assert torch.equal(train(request), plain), request
for make in (DeMo, lambda parameters: OneBitAdam(parameters, warmup_steps=2)):
    assert torch.equal(train(make([torch.nn.Parameter(torch.zeros(2))]).compression(), make), train(None, make))
print("equal")
"""


@pytest.mark.level2
def test_one_rank_is_plain_training_to_the_bit() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr
    told = done.stderr.count("there is one rank, so nothing is exchanged, and nothing is compressed")
    assert told == 8 + len(brought("ADAPTIVE")) + len(brought("FIXED"))
