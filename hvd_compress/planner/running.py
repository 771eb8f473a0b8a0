"""Running an option: which scheme carries it out, as a table, and what of the tree a job can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import ALGORITHMS, Capabilities
from hvd_compress.planner.holdings import Step, steps
from hvd_compress.planner.options import DEVICES, Option, Task, by_name
from hvd_compress.planner.profiles import SystemProfile

TABLE: Mapping[str, Path] = {
    "allreduce@all": Path("dense"),
    "reduce_scatter@all allgather@all": Path("dense", "ring"),
    "reduce@within allreduce@across broadcast@within": Path("hierarchical"),
    "comp allgather*@all decomp": Path("allgather"),
    "comp alltoall*@all decomp comp allgather*@all decomp": Path("alltoall-allgather"),
    "comp gather*@all decomp comp broadcast*@all decomp": Path("gather-broadcast"),
    "comp gather*@all decomp broadcast@all": Path("parameter-server"),
    "reduce_scatter@within comp allgather*@across decomp allgather@within": Path("hitopk"),
    "reduce@within comp allgather*@across decomp broadcast@within": Path("hierarchical"),
    "comp gather*@within decomp allreduce@across broadcast@within": Path("hierarchical-within"),
    "comp gather*@within decomp comp allgather*@across decomp broadcast@within": Path("hierarchical-both"),
}
"""Options without their devices, and the paths that carry them out, where their schemes carry the compressor.

- A hierarchical path exchanges among the leaders by the flat scheme with the fewest bytes. It stands for an option
  where that is an all-gather, whatever the size. With top-k beyond two hosts it is STAR, which is in no option; of
  quantisers the size of the bucket decides.
- Engines have no reduce: an allreduce takes its place (REPLACED), and is priced.
- A ring is both, a reduce-scatter and an all-gather, in one call of the engine. No tree is listed for reduce and
  broadcast: an allreduce by recursive doubling has half as many messages.
"""

REPLACED: Mapping[str, str] = {"reduce": "allreduce"}
"""Routines that are run by another one, whose result holds more than is needed."""
MERGED: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("allreduce", "ring"): (("reduce_scatter", "all"), ("allgather", "all")),
}
"""What one collective with an algorithm does in the place of several of all ranks."""

_VERBS = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather")
_FLOATS = (torch.float32, torch.float16)
ENGINES: Mapping[str, Capabilities] = {
    "mpi": Capabilities(_VERBS, ALGORITHMS, _FLOATS, splits=True),
    "torch": Capabilities(_VERBS, (), _FLOATS, splits=True),
    "horovod": Capabilities(_VERBS[:-1], (), _FLOATS),
}
"""What a plan may take for granted of an engine, by its name in a request; the job checks it in its first step."""
LARGEST = 1 << 27
"""Elements up to which a path must launch the same, as a choice among schemes may depend on the size."""


@dataclass(frozen=True)
class Run:
    """How an option is run: what a plan says of a bucket."""

    compressor: Compressor
    path: Path
    device: str


def runnable(compressor: Compressor, system: SystemProfile, engine: str = "mpi") -> dict[Option, Run]:
    """Return all options that a scheme carries out with this compressor, and how.

    Args:
        engine: a name of ENGINES.
    """
    hosts = tuple(rank // system.ranks_per_host for rank in range(system.hosts * system.ranks_per_host))
    can = replace(ENGINES[engine], hosts=hosts)
    found: dict[Option, Run] = {}
    for words, path in TABLE.items():
        for device in DEVICES if "comp" in words.split() else DEVICES[:1]:
            option = by_name(on(words, device))
            if option.hierarchical and 1 in (system.hosts, system.ranks_per_host):
                continue  # it is a flat one, with more work
            sent = compressor if option.compressions else Cast()
            if _carries_out(option, sent, path, can):
                found[option] = Run(sent, path, "cpu" if device == "host" else "auto")
    return found


def on(words: str, device: str) -> str:
    """Return the name of an option whose devices were left out."""
    return " ".join(f"{word}@{device}" if word in ("comp", "decomp") else word for word in words.split())


def as_run(option: Option, hosts: int, ranks_per_host: int) -> tuple[Step, ...]:
    """Return the steps of an option as they are run, and are to be priced."""
    found = steps(option, hosts, ranks_per_host)
    return tuple(replace(step, task=_replaced(step.task)) for step in found)


def communication(option: Option, hosts: int, ranks_per_host: int) -> list[tuple[str, str]]:
    """Return the collectives of an option as they are run, (routine, link), without those of one rank."""
    ranks = {"all": hosts * ranks_per_host, "within": ranks_per_host, "across": hosts}
    tasks = [_replaced(task) for task in option.tasks if task.communicates and ranks[task.place] > 1]
    return [(task.routine, task.place) for task in tasks]


def _replaced(task: Task) -> Task:
    return replace(task, routine=REPLACED.get(task.routine, task.routine))


def _carries_out(option: Option, compressor: Compressor, path: Path, can: Capabilities) -> bool:
    """Whether a path can run over an engine, and launches the collectives of the option, whatever the size."""
    small, large = Layout.of((1, 1)), Layout.of((LARGEST >> 13, 1 << 13))
    if path not in schemes.runnable(compressor, large, can):
        return False
    world_size, count = len(can.hosts), max(can.hosts) + 1
    wanted = communication(option, count, world_size // count)
    launched = [schemes.stages(compressor, path, layout, world_size, can.hosts) for layout in (small, large)]
    return all(_launched(stages, count, world_size // count) == wanted for stages in launched)


def _launched(stages: tuple[Stage, ...], hosts: int, ranks_per_host: int) -> list[tuple[str, str]]:
    """Return the collectives of a scheme as (verb, link). Groups of a scheme go within, across, and within again."""
    found: list[tuple[str, str]] = []
    groups = [stage for stage in stages if stage.ranks is not None]
    for stage in stages:
        if stage.ranks is None:
            found += MERGED.get((stage.verb, stage.algorithm), ((stage.verb, "all"),))
        elif stage.ranks > 1:
            ends = ranks_per_host > 1 and (stage is groups[0] or stage is groups[-1])
            found.append((stage.verb, "within" if ends else "across"))
    return found
