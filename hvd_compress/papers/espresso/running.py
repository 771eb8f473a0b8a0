"""Running an option: which path carries it out, and what of the tree a job can run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import ALGORITHMS, Capabilities
from hvd_compress.engines.names import EngineName
from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso.by_option import ByOption
from hvd_compress.papers.espresso.options import DEVICES, Option, options
from hvd_compress.profiler.profiles import SystemProfile

TABLE: Mapping[str, Path] = {
    "allreduce@all": Path("dense"),
    "comp allgather*@all decomp": Path("allgather"),
    "comp alltoall*@all decomp comp allgather*@all decomp": Path("alltoall-allgather"),
    "comp gather*@all decomp comp broadcast*@all decomp": Path("gather-broadcast"),
    "comp gather*@all decomp broadcast@all": Path("parameter-server"),
    "reduce_scatter@within comp allgather*@across decomp allgather@within": Path("hitopk"),
    "comp gather*@within decomp allreduce@across broadcast@within": Path("hierarchical-within"),
}
"""Options, without their devices, that a collective of its own carries out, in fewer passes over memory or for
compressors that ByOption does not carry. All others are paths by their own name."""

_VERBS = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather")
_FLOATS = (torch.float32, torch.float16)
ENGINES: Mapping[EngineName, Capabilities] = {
    "mpi": Capabilities(_VERBS, ALGORITHMS, _FLOATS, splits=True),
    "torch": Capabilities(_VERBS, (), _FLOATS, splits=True),
    "horovod": Capabilities(_VERBS[:-1], (), _FLOATS),
}
"""What a plan may take for granted of an engine, by its name in a request; the job checks it in its first step."""
EXAMPLE = Layout.of((1024, 1024))
MOST_RANKS = 128
"""Of options that ByOption carries out. What all ranks hold at each task is worked out by each rank, once
for each size of a bucket: 0.3 s with 128 ranks, 2.4 s with 256."""


@dataclass(frozen=True)
class Run:
    """How an option is run: what a plan says of a bucket."""

    compressor: Compressor
    path: Path
    device: str


def runnable(
    compressor: Compressor, system: SystemProfile, engine: EngineName = "mpi", devices: Collection[str] = DEVICES
) -> dict[Option, Run]:
    """Return all options that a job can carry out with this compressor, and how, in the order of the tree.

    A bucket is compressed on one device. With one host, or one rank each, hierarchical options are flat ones with more
    work, and are left out. With more than MOST_RANKS those are left that have a collective of their own.

    Args:
        engine: a name of ENGINES.
        devices: that can compress.
    """
    can = replace(ENGINES[engine], hosts=_few_hosts(system))
    few = system.hosts * system.ranks_per_host <= MOST_RANKS
    found: dict[Option, Run] = {}
    for option in options():
        if len(option.devices) > 1 or not option.devices <= set(devices):
            continue
        if option.hierarchical and 1 in (system.hosts, system.ranks_per_host):
            continue
        sent = compressor if option.compressions else Cast()
        path = path_of(option, sent, can)
        if path is not None and (few or not ByOption.means(path.collective)):
            found[option] = Run(sent, path, "cpu" if option.devices == {DEVICES[1]} else "auto")
    return found


def _few_hosts(system: SystemProfile) -> tuple[int, ...]:
    """Return by rank the number of its host, in a job of two hosts of two ranks at most: what runs there, runs."""
    hosts, ranks_per_host = min(2, system.hosts), min(2, system.ranks_per_host)
    return tuple(rank // ranks_per_host for rank in range(hosts * ranks_per_host))


def path_of(option: Option, compressor: Compressor, can: Capabilities) -> Path | None:
    """Return the path that carries out an option over an engine; None where there is none."""
    own = TABLE.get(option.path)
    paths = [own, Path(option.path)] if own is not None else [Path(option.path)]
    return next((path for path in paths if _runs(compressor, path, can)), None)


def _runs(compressor: Compressor, path: Path, can: Capabilities) -> bool:
    if not collectives.carries(compressor, path) or len(compressor.wire(EXAMPLE)) > 1:  # one payload for each call
        return False
    try:
        return collectives.runs(compressor, path, EXAMPLE, can)
    except ConfigError:
        return False
