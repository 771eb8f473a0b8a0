"""Train a few steps by the plan whose file is the first argument; rank 0 prints what its optimizer decides."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd
from tests.harness import backward, make_parameters

STEPS = 5

hvd.init()
Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
torch.set_num_threads(1)
parameters = make_parameters()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(parameters.values(), lr=0.1),
    named_parameters=parameters.items(),
    compression=hvd.Compression.plan(sys.argv[1]),
)
for step in range(STEPS):
    optimizer.zero_grad()
    backward(parameters, hvd.rank(), step)
    optimizer.step()
    trained = torch.cat([parameter.detach().flatten() for parameter in parameters.values()])
    everyone = hvd.allgather(trained.unsqueeze(0))
    assert (everyone == everyone[0]).all(), step
if hvd.rank() == 0:
    found = [
        [list(names), str(decision.path), decision.ratio] for names, decision in hvd.of(optimizer).decisions.items()
    ]
    print(f"decisions: {json.dumps(found)}", flush=True)
