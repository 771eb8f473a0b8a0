"""One rank of step.py: trains by all methods, windows in turns. Rank 0 tells the rounds, and the bytes of each."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import hvd_compress.fsdp as hc
from benchmarks.frame.lab import asked, tell
from benchmarks.frame.ranks import over_gloo
from benchmarks.frame.turns import in_turns
from benchmarks.fsdp.loss import METHODS, sharded
from benchmarks.fsdp.step import SHARDS
from benchmarks.time_to_accuracy.tasks import TASKS


class Training:
    """This rank's part of a training by one method."""

    def __init__(self, method: str) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // SHARDS, SHARDS), mesh_dim_names=("replicas", "shards"))
        self.task, self.taken, self.compressed = TASKS["language"], 0, METHODS[method] is not None
        self.model = sharded(self.task, mesh, method, seed=1)
        self.optimizer = self.task.optimizer(self.model.parameters())

    def step(self) -> None:
        self.task.loss(self.model, self.task.batch(1, self.taken, dist.get_rank())).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1

    @property
    def sent_bytes(self) -> float:
        """Across hosts, in a step: of its own shard."""
        if self.compressed:
            return float(hc.of(self.model).last_step.sent_bytes)
        return 4.0 * sum(parameter.to_local().numel() for parameter in self.model.parameters())


def main() -> None:
    wanted = asked()
    with over_gloo():
        trainings = [Training(method) for method in wanted["methods"]]
        rounds = in_turns([training.step for training in trainings], wanted["rounds"], wanted["window"])
        tell(wanted, {"rounds": rounds, "sent_bytes": [training.sent_bytes for training in trainings]})


if __name__ == "__main__":
    main()
