"""Takes local steps by whole numbers with torchft's Manager, of a model that two ranks share in each replica.

As torchft_local.py, of each rank's shard. Arguments: as of torchft_ddp.py.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hvd_compress
from hvd_compress.integrations.torchft import LocalSteps
from tests.jobs.programs.torchft_ddp import COMPRESSIONS, made_manager, say
from tests.jobs.programs.torchft_local import EVERY, Sums

ROWS, COLUMNS, UNIT = 40, 50, 24.0


class Weighed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def main() -> None:
    replica, folder, name, least_s, quorum = sys.argv[1:]
    end, rank = Path(folder) / "end", int(os.environ["RANK"])
    dist.init_process_group("gloo")
    model = Weighed()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    zeros = torch.zeros_like(weight_of(model))
    done: dict[str, Any] = {"total": zeros, "moved": zeros, "agreed": weight_of(model)}

    def load(state: dict[str, Any]) -> None:
        with torch.no_grad():
            model.weight.to_local().copy_(state["weight"])
        done.update(state["done"])

    manager, _store = made_manager(replica, quorum, load, lambda: {"weight": weight_of(model), "done": dict(done)})
    sums = Sums(manager, lambda: weight_of(model), done)
    local, step = LocalSteps(manager, optimizer, model, every=EVERY, compression=COMPRESSIONS[name]), 0
    say(f"{os.getppid()} is replica {replica}")
    while not end.exists() or manager.current_step() < int(end.read_text()):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10_000 * int(replica) + 10 * step + rank)
        model(UNIT * torch.randint(-9, 9, (ROWS, COLUMNS), generator=draw).float()).backward()
        step += 1
        optimizer.step()
        if (ranks := sums.after_step()) and rank == 0:
            say(f"{os.getppid()} step {manager.current_step()} of {ranks}")
        time.sleep(float(least_s))
    (own,) = hvd_compress.of(local).state_dict()["ranks"].values()
    owed = own["residuals"].get("weight", zeros).view_as(zeros)
    torch.save(
        {"weight": weight_of(model), "owed": owed, "present": [], **done}, Path(folder) / f"{replica} shard {rank}.pt"
    )
    say(f"{os.getppid()} ends")
    dist.barrier()
    manager.shutdown(wait=False)
    os._exit(0)


def weight_of(model: Weighed) -> torch.Tensor:
    found: torch.Tensor = model.weight.to_local().detach().clone()  # type: ignore[operator]
    return found


if __name__ == "__main__":
    main()
