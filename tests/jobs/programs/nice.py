"""What niceness have the threads of a rank, before and after it has exchanged gradients?

usage: nice.py ENGINE HOSTS
"""

import os
import sys
from pathlib import Path

import torch

import hvd_compress.torch as hvd
from hvd_compress.engines import base


def niceness() -> list[int]:
    return sorted({os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")})


base.host_identity = lambda: f"host {hvd.rank() % int(sys.argv[2])}"  # ranks of one machine
hvd.init()
Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
before = niceness()
model = torch.nn.Linear(40, 40)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    model.named_parameters(),
    compression=hvd.Compression.int4().by(engine=sys.argv[1]),
)
model(torch.ones(40)).sum().backward()
optimizer.step()
print(f"rank {hvd.rank()}: {before}, then {niceness()}", flush=True)
