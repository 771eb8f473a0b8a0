"""Takes local steps by whole numbers with torchft's Manager, and leaves what it has for who adds up.

What each replica has moved is summed beside each round, uncompressed: that must be what the rounds that count have
moved, times the replicas that took part, and what replicas owe at the end. Arguments: as of torchft_ddp.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ReduceOp
from torchft import Manager

import hvd_compress
from hvd_compress.integrations.torchft import LocalSteps
from tests.jobs.programs.torchft_ddp import COMPRESSIONS, NUMEL, gradient, made_manager, say

EVERY = 3


class Sums:
    """What rounds that count have moved, and beside it, uncompressed, what replicas have moved."""

    def __init__(self, manager: Manager, weight: Callable[[], torch.Tensor], done: dict[str, Any]) -> None:
        self._manager, self._weight, self._done, self._counts = manager, weight, done, False
        self._commit, manager.should_commit = manager.should_commit, self._should_commit

    def _should_commit(self) -> bool:
        moved = self._done["agreed"] - self._weight()
        self._manager.allreduce(moved, reduce_op=ReduceOp.SUM).wait()
        self._counts = bool(self._commit())
        if self._counts:
            self._done["moved"] = self._done["moved"] + moved
        return self._counts

    def after_step(self) -> int:
        """Return how many ranks have taken part in the round that has ended; 0 where none has, or it does not count."""
        if not self._counts:
            return 0
        self._counts = False
        now, ranks = self._weight(), int(self._manager.num_participants())
        self._done["total"] = self._done["total"] + ranks * (self._done["agreed"] - now)
        self._done["agreed"] = now
        return ranks


def main() -> None:
    replica, folder, name, least_s, quorum = sys.argv[1:]
    end = Path(folder) / "end"
    torch.manual_seed(int(replica))
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randint(0, 3, (1, NUMEL)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    done: dict[str, Any] = {"total": torch.zeros(NUMEL), "moved": torch.zeros(NUMEL), "agreed": weight_of(model)}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        done.update(state["done"])

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "done": dict(done)}

    manager, _store = made_manager(replica, quorum, load, save)
    sums = Sums(manager, lambda: weight_of(model), done)
    local, step = LocalSteps(manager, optimizer, model, every=EVERY, compression=COMPRESSIONS[name]), 0
    say(f"{os.getpid()} is replica {replica}")
    while not end.exists() or manager.current_step() < int(end.read_text()):
        optimizer.zero_grad()
        (model.weight[0] * gradient(step, int(replica))).sum().backward()
        step += 1
        optimizer.step()
        if ranks := sums.after_step():
            say(f"{os.getpid()} step {manager.current_step()} of {ranks}")
        time.sleep(float(least_s))
    (own,) = hvd_compress.of(local).state_dict()["ranks"].values()
    owed = own["residuals"].get("weight", torch.zeros(NUMEL)).view(-1)
    torch.save({"weight": weight_of(model), "owed": owed, "present": [], **done}, Path(folder) / f"{replica}.pt")
    say(f"{os.getpid()} ends")
    manager.shutdown(wait=False)
    os._exit(0)


def weight_of(model: torch.nn.Linear) -> torch.Tensor:
    return model.weight.detach()[0].clone()


if __name__ == "__main__":
    main()
