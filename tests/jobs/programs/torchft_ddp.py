"""Trains by whole numbers with torchft's Manager, and leaves what it has for who adds up.

What a replica computes in a step follows from its number and the step. Each step's result, times the replicas that it
is a mean over, is summed: that sum, and what replicas owe at the end, must be what all have computed that took part.
Arguments: the replica's number, a folder, whose file "end" says after which step to end, the compression, seconds that
a step takes at least, and "async" or "sync", for when a replica that has come gets the others' state.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ReduceOp, TCPStore
from torchft import Manager
from torchft.optim import OptimizerWrapper

import hvd_compress
from hvd_compress.integrations.torchft import Compression, DistributedDataParallel, ProcessGroup

NUMEL, MOST, UNIT = 5000, 4, 12.0
"""Elements; replicas; and a number that all counts of replicas divide."""
COMPRESSIONS = {"dense": Compression.dense(), "topk": Compression.topk(0.2)}


def gradient(step: int, replica: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + replica)
    return UNIT * torch.randint(-9, 9, (NUMEL,), generator=draw).float()


def say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


def made_manager(
    replica: str, quorum: str, load: Callable[[Any], None], save: Callable[[], Any]
) -> tuple[Manager, TCPStore]:
    """Return that of a replica of one process, and the store that it needs."""
    store, waits = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), timedelta(seconds=20)
    if "RANK" in os.environ:  # the store of the replica group
        of_group: dict[str, Any] = {}
    else:
        of_group = {"rank": 0, "world_size": 1, "store_addr": "127.0.0.1", "store_port": store.port}
    manager = Manager(
        pg=ProcessGroup(timeout=waits),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=2,
        use_async_quorum=quorum == "async",
        timeout=waits,
        quorum_timeout=timedelta(seconds=120),
        replica_id=f"replica_{replica}",
        hostname="127.0.0.1",
        **of_group,
    )
    return manager, store


def main() -> None:
    replica, folder, name, least_s, quorum = sys.argv[1:]
    end = Path(folder) / "end"
    torch.manual_seed(int(replica))  # replicas begin with other parameters, and take those of one
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randint(0, 3, (1, NUMEL)))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    done: dict[str, Any] = {"total": torch.zeros(NUMEL), "present": []}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        done.update(state["done"])

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "done": {"total": done["total"], "present": list(done["present"])}}

    manager, _store = made_manager(replica, quorum, load, save)
    wrapped = DistributedDataParallel(manager, model, COMPRESSIONS[name])
    optimizer = OptimizerWrapper(manager, inner)
    say(f"{os.getpid()} is replica {replica}")
    while not end.exists() or manager.current_step() < int(end.read_text()):
        optimizer.zero_grad()
        present = torch.zeros(MOST)
        present[int(replica)] = 1
        work = manager.allreduce(present, reduce_op=ReduceOp.SUM)
        step, begun = manager.current_step(), wrapped(torch.ones(NUMEL))
        ((0 * begun).sum() + (model.weight[0] * gradient(step, int(replica))).sum()).backward()
        work.wait()
        result, ranks = model.weight.grad, manager.num_participants()
        optimizer.step()
        if manager.current_step() > step:
            assert result is not None
            done["total"] = done["total"] + ranks * result[0]
            done["present"].append(present.nonzero().view(-1).tolist())
            say(f"{os.getpid()} step {step} of {ranks}")
        time.sleep(float(least_s))
    (own,) = hvd_compress.of(wrapped).state_dict()["ranks"].values()
    owed = own["residuals"].get("weight", torch.zeros(NUMEL)).view(-1)
    torch.save({"weight": model.weight.detach(), "owed": owed, **done}, Path(folder) / f"{replica}.pt")
    say(f"{os.getpid()} ends")
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
