"""Seconds of a step under HSDP, two ranks a host, in an emulated network (root): compressed against uncompressed.

    python -m benchmarks.fsdp.step --hosts 2 --latency 5ms --bandwidth 100mbit

The task is the language model of benchmarks/time_to_accuracy. All methods are trained in one job, in windows, in turns.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import hvd_compress.fsdp as hc
from benchmarks.ddp.windows import slowest
from benchmarks.fsdp.loss import METHODS, sharded
from benchmarks.time_to_accuracy.tasks import TASKS
from benchmarks.turns import in_turns, ms, ratio_cells
from hvd_compress.netlab import Lab
from hvd_compress.netlab.network import INTERFACE, address

PORT, SHARDS = 29_500, 2


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
            return float(hc.last_step(self.model).sent_bytes)
        return 4.0 * sum(parameter.to_local().numel() for parameter in self.model.parameters())


def measure(methods: list[str], rounds: int, window: int, file: Path) -> None:
    """Be a rank of the job: rank 0 writes the rows of the table."""
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    torch.set_num_threads(1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    dist.init_process_group("gloo", f"tcp://{address(1)}:{PORT}", rank=rank, world_size=size)
    trainings = [Training(method) for method in methods]
    taken = in_turns([training.step for training in trainings], rounds, window, slowest)
    if rank == 0:
        rows: list[Any] = [
            [
                method,
                f"{1e-6 * training.sent_bytes:.2f}",
                ms([row[place] for row in taken]),
                *ratio_cells([row[place] / row[0] for row in taken]),
            ]
            for place, (method, training) in enumerate(zip(methods, trainings, strict=True))
        ]
        file.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


@click.command(help=__doc__)
@click.option("--hosts", default=2, show_default=True)
@click.option("--latency", default="5ms", show_default=True)
@click.option("--bandwidth", default="100mbit", show_default=True)
@click.option("--methods", default="uncompressed,int8,int4", show_default=True, help="Compared with the first.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--window", default=4, show_default=True, help="Steps.")
@click.option("--rows", type=click.Path(path_type=Path), hidden=True)
def main(hosts: int, latency: str, bandwidth: str, methods: str, rounds: int, window: int, rows: Path | None) -> None:
    if rows is not None:
        measure(methods.split(","), rounds, window, rows)
        return
    with TemporaryDirectory() as folder, Lab(hosts, latency, bandwidth, slots=SHARDS) as lab:
        file = Path(folder, "rows")
        command = [sys.executable, "-m", "benchmarks.fsdp.step", "--rows", str(file), "--methods", methods]
        command += ["--rounds", str(rounds), "--window", str(window)]
        lab.run(command, stdout=sys.stderr).check_returncode()
        print("| method | MB across hosts, a rank | step, ms | of the first | 95 % |\n|" + " --- |" * 5)
        for row in json.loads(file.read_text()):
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
