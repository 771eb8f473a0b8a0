"""Loss against steps under FSDP2, in pairs with the same seed: 4 processes over gloo, as 4 shards and as 2 x 2.

    python -m benchmarks.fsdp.loss --seeds 2          # trains what build/fsdp/ has not, and prints the table
    python -m benchmarks.fsdp.loss --steps 40 --most 1

The task is the language model of benchmarks/time_to_accuracy. A loss is the mean of the validation losses after
STEPS - EVERY, STEPS and STEPS + EVERY steps. All are compared with 4 uncompressed shards of the same seed; uncompressed
2 x 2 ranks, which sum in another order, show what that alone makes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import hvd_compress.fsdp as hc
from benchmarks.frame.page import table
from benchmarks.frame.processes import run_job
from benchmarks.frame.store import BUILD, read, write
from benchmarks.time_to_accuracy.figures import EVERY, STEPS, loss_at
from benchmarks.time_to_accuracy.tasks import RANKS, TASKS, Task
from hvd_compress.request.request import Request

FOLDER = BUILD / "fsdp"


@dataclass(frozen=True)
class Method:
    """How gradients and parameters travel; None as FSDP sends them.

    Attributes:
        feedback: of a reduce-scatter; among replicas it is there anyway.
        dtype: MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype).
    """

    gradients: Request | None = None
    feedback: bool = False
    parameters: Any = None
    dtype: torch.dtype | None = None


_C = hc.Compression
METHODS = {
    "uncompressed": Method(),
    "int8": Method(_C.int8()),
    "int4": Method(_C.int4()),
    "int4-feedback": Method(_C.int4(), feedback=True),
    "gathers-bf16": Method(_C.dense(), parameters=_C.bf16()),
    "gathers-int8": Method(_C.dense(), parameters=_C.int8()),
    "gathers-int4": Method(_C.dense(), parameters=_C.int4()),
    "differences-int4": Method(_C.dense(), parameters=hc.differences(_C.int4())),
    "int4+gathers-int8": Method(_C.int4(), parameters=_C.int8()),
    "int4+differences-int4": Method(_C.int4(), parameters=hc.differences(_C.int4())),
    "int4+gathers-bf16": Method(_C.int4(), parameters=_C.bf16()),
    "int4+gathers-auto": Method(_C.int4(), parameters=_C.auto()),
    "bf16": Method(dtype=torch.bfloat16),
}
MESHES = {"4": (4,), "2x2": (2, 2)}


@dataclass(frozen=True)
class Run:
    """One training."""

    mesh: str
    method: str
    seed: int
    steps: int = STEPS

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.mesh}-{self.method}-seed{self.seed}-{self.steps}.json"

    def found(self) -> dict[str, Any] | None:
        return read(self.file)

    def train(self) -> dict[str, Any]:
        found = run_job(RANKS, train, self)
        write(self.file, found)
        return found


def sharded(task: Task, mesh: DeviceMesh, method: str, seed: int) -> Any:
    """Return a new model of a task, sharded and perhaps compressed."""
    torch.manual_seed(seed)
    model: Any = task.model()
    how = METHODS[method]
    policy = MixedPrecisionPolicy(param_dtype=how.dtype, reduce_dtype=how.dtype)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    order = [model, *model.blocks]
    for module, following in pairwise(order):  # which makes gathers over gloo asynchronous, where FSDP's own are not
        module.set_modules_to_forward_prefetch([following])
    if how.gradients is None:
        return model
    return hc.compress(model, how.gradients, feedback=how.feedback, parameters=how.parameters)


def train(run: Run) -> dict[str, Any]:
    """Train on this rank; return losses by steps, and the bits that a rank sent of an element of fp32."""
    task, rank = TASKS["language"], dist.get_rank()
    sizes = MESHES[run.mesh]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
    model = sharded(task, mesh, run.method, run.seed)
    optimizer, losses = task.optimizer(model.parameters()), []
    for step in range(run.steps + EVERY):
        task.loss(model, task.batch(run.seed, step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            losses.append((step + 1, task.validation_loss(model)))
    found: dict[str, Any] = {"losses": losses, "bits": None, "parameter_bits": None}
    if METHODS[run.method].gradients is not None:
        report = hc.of(model).last_step
        found["bits"] = 32 * report.sent_bytes / report.dense_bytes
        if report.dense_parameter_bytes:  # of the gathers of one step
            found["parameter_bits"] = 32 * report.parameter_bytes / report.dense_parameter_bytes
    return found


def page(steps: int, seeds: int) -> str:
    """Return what has been trained, as a table."""
    rows = []
    bases = [Run("4", "uncompressed", seed, steps).found() for seed in range(seeds)]
    for mesh, method in product(MESHES, METHODS):
        runs = [Run(mesh, method, seed, steps).found() for seed in range(seeds)]
        pairs = [(own, base) for own, base in zip(runs, bases, strict=True) if own and base]
        if not pairs:
            continue
        ends = [(loss_at(own["losses"], steps), loss_at(base["losses"], steps)) for own, base in pairs]
        above = [own - base for own, base in ends]
        bits = [_bits(pairs[0][0].get(name)) for name in ("bits", "parameter_bits")]
        told = [*bits, f"{fmean(own for own, _ in ends):.4f}"]
        rows.append([mesh, method, *told, ", ".join(f"{each:+.4f}" for each in above), f"{fmean(above):+.4f}"])
    titles = ["mesh", "method", "bits of a gradient", "of a parameter", "loss", "above uncompressed, by seed", "mean"]
    return table(titles, rows, words=len(titles))


def _bits(found: float | None) -> str:
    return "32" if found is None else f"{found:.2f}"


@click.command(help=__doc__)
@click.option("--seeds", default=2, show_default=True)
@click.option("--steps", default=STEPS, show_default=True, help="After which a loss counts: 40, 60, ...")
@click.option(
    "--methods", default=",".join(name for name in METHODS if name != "bf16"), help="All but bf16 if not given."
)
@click.option("--most", default=1000, show_default=True, help="Trainings that this call does at most.")
def main(seeds: int, steps: int, methods: str, most: int) -> None:
    left = [
        run
        for seed, mesh, method in product(range(seeds), MESHES, methods.split(","))
        if (run := Run(mesh, method, seed, steps)).found() is None and (mesh, method) != ("2x2", "int4-feedback")
    ]
    for run in left[:most]:
        found = run.train()
        print(f"{run}: {found['losses'][-2:]}", file=sys.stderr, flush=True)
    print(page(steps, seeds))


if __name__ == "__main__":
    main()
