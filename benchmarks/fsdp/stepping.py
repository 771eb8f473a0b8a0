"""One rank of step.py: trains by all methods, windows in turns. Rank 0 tells the rounds, and the bytes of each."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import hvd_compress.fsdp as hc
from benchmarks.frame.lab import asked, tell
from benchmarks.frame.ranks import over_gloo
from benchmarks.frame.turns import in_turns
from benchmarks.fsdp.loss import MESHES, METHODS, sharded
from benchmarks.time_to_accuracy.tasks import TASKS

SEARCH = 32
"""Steps in which auto() tries all forms of gathers, and a few more."""


class Training:
    """This rank's part of a training by one method."""

    def __init__(self, method: str, mesh: DeviceMesh) -> None:
        self.method, self.is_compressed = method, METHODS[method].gradients is not None
        self.task, self.taken = TASKS["language"], 0
        self.model = sharded(self.task, mesh, method, seed=1)
        self.optimizer = self.task.optimizer(self.model.parameters())

    def step(self) -> None:
        self.task.loss(self.model, self.task.batch(1, self.taken, dist.get_rank())).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1

    def search(self) -> None:
        """Let auto() choose before windows begin, which would disturb what it measures."""
        if self.method.endswith("-auto"):
            for _ in range(SEARCH):
                self.step()

    def form(self) -> str | None:
        """Return how parameters are gathered; None as FSDP has it."""
        if METHODS[self.method].parameters is None:
            return None
        return next(name for name in hc.of(self.model).metrics() if name.startswith("gathers/"))

    def sent_bytes(self) -> tuple[int | None, int | None]:
        """Return what a rank has sent in the last step of gradients, and of parameters; None where FSDP has."""
        if not self.is_compressed:
            return None, None
        report = hc.of(self.model).last_step
        return report.sent_bytes, report.parameter_bytes or None


def main() -> None:
    wanted = asked()
    with over_gloo():
        sizes = MESHES[wanted["mesh"]]
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
        trainings = [Training(method, mesh) for method in wanted["methods"]]
        for training in trainings:
            training.search()
        rounds = in_turns([training.step for training in trainings], wanted["rounds"], wanted["window"])
        sent_bytes, forms = zip(*((training.sent_bytes(), training.form()) for training in trainings), strict=True)
        tell(wanted, {"rounds": rounds, "sent_bytes": sent_bytes, "forms": forms})


if __name__ == "__main__":
    main()
