"""What others would choose: policies over the same tree and timeline (Espresso, sections 5.1, 5.3 and 6).

A policy takes a problem and returns a strategy. Where a problem's constraints leave nothing of a policy's space, it
compresses nothing. GPU is the device that trains, CPU that of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hvd_compress.errors import PlanError, did_you_mean
from hvd_compress.papers.espresso import spaces
from hvd_compress.papers.espresso.espresso import (
    Chosen,
    algorithm1,
    algorithm2,
    best_uniform,
    espresso,
    near_optimal,
    start,
)
from hvd_compress.papers.espresso.options import Constraints
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.profiler.profiles import ELEMENT_BYTES

Policy = Callable[[Problem], Chosen]

HITOPKCOMM = "reduce_scatter@within comp@training allgather*@across decomp@training allgather@within"
BYTEPS_COMPRESS = (
    "reduce_scatter@within comp@host alltoall*@across decomp@host comp@host allgather*@across decomp@host "
    "allgather@within"
)
BYTEPS_MIN_COMPRESS_BYTES = 65_536
"""BytePS' default of the variable of this name: smaller tensors are not compressed."""


def all_compression(problem: Problem) -> Chosen:
    """Compress all tensors (section 5.3, dimension 1).

    Read, as the paper does not say how: Algorithms 1 and 2 among options that compress. They begin with the one that is
    the best where all tensors have it, since there is no uncompressed strategy to begin with.
    """
    among = problem.where(spaces.COMPRESSING_ON_GPU) or problem.where(spaces.COMPRESSING)
    if not among:
        return _by("all compression", start(problem))
    first = best_uniform(problem, among, "")
    found = problem.native.select(problem.numel, among, first.strategy[0])
    return _by("all compression", algorithm2(problem, Chosen(found.strategy, found.end_ns, "")))


def myopic(problem: Problem) -> Chosen:
    """Give each tensor the option with the least tau_comm + tau_comp, as if alone (section 5.3, dimension 1)."""
    return _each_alone(problem, range(len(problem.options)), "myopic")


def gpu_only(problem: Problem) -> Chosen:
    """Compress on the GPU alone: Algorithm 1 (section 5.3, dimension 2)."""
    return _by("GPU only", algorithm1(problem))


def cpu_only(problem: Problem) -> Chosen:
    """Compress on the CPU alone: Algorithm 1 with the options of the CPU (section 5.3, dimension 2)."""
    return _by("CPU only", algorithm1(problem, spaces.ON_CPU))


def inter_allgather(problem: Problem) -> Chosen:
    """Compress across hosts, by an all-gather: Algorithms 1 and 2 in this space (section 5.3, dimension 3)."""
    return _espresso_in(problem, spaces.inter_allgather(), "inter all-gather")


def inter_alltoall(problem: Problem) -> Chosen:
    """Compress across hosts, by all-to-all and all-gather: Algorithms 1 and 2 (section 5.3, dimensions 3 and 4)."""
    return _espresso_in(problem, spaces.inter_alltoall(), "inter all-to-all")


def alltoall_alltoall(problem: Problem) -> Chosen:
    """Compress within hosts and again across them, by all-to-all: Algorithms 1 and 2 (section 5.3, dimension 4)."""
    return _espresso_in(problem, spaces.alltoall_alltoall(), "all-to-all + all-to-all")


def hipress(problem: Problem) -> Chosen:
    """Compress a tensor where that makes its own synchronisation shorter: HiPress (section 6; Bai et al. 2021).

    On the GPU and across hosts alone. Time saved is compared with the time of compression and decompression, a tensor
    at a time. Read: by all-gather or all-to-all, whichever is shorter, for HiPress' rings and parameter servers.
    """
    compressed = problem.where(spaces.compressing(spaces.inter(), "training"))
    return _each_alone(problem, [start(problem).strategy[0], *compressed], "HiPress")


def hitopkcomm(problem: Problem) -> Chosen:
    """Compress all tensors on the GPU: HiTopKComm (section 6; Shi et al. 2021).

    Reduce-scatter within a host, all-gather of payloads across hosts, all-gather within.
    """
    return _all_by(problem, HITOPKCOMM, 0, "HiTopKComm")


def byteps_compress(problem: Problem) -> Chosen:
    """Compress all tensors but small ones on the CPU: BytePS-Compress (section 6; Zhong et al. 2021).

    Servers on all hosts add parts and compress the sum again: read as an all-to-all and an all-gather across hosts.
    """
    return _all_by(problem, BYTEPS_COMPRESS, BYTEPS_MIN_COMPRESS_BYTES, "BytePS-Compress")


class _Policies(dict[str, Policy]):
    """By name."""

    def __missing__(self, name: str) -> Policy:
        raise PlanError(f"unknown policy {name!r}" + (did_you_mean(name, self) or f"; known are {', '.join(self)}"))


POLICIES: Mapping[str, Policy] = _Policies(
    {
        "fp32": start,
        "all-compression": all_compression,
        "myopic": myopic,
        "gpu-only": gpu_only,
        "cpu-only": cpu_only,
        "inter-allgather": inter_allgather,
        "inter-alltoall": inter_alltoall,
        "alltoall-alltoall": alltoall_alltoall,
        "hipress": hipress,
        "hitopkcomm": hitopkcomm,
        "byteps-compress": byteps_compress,
        "espresso": espresso,
    }
)
"""All but Upper Bound and brute force, which need more than a problem. An unknown name raises PlanError."""


def upper_bound(problem: Problem, starts: Sequence[Chosen], budget_s: float = 2.0) -> Chosen:
    """Return the best strategy that is found where compression takes no time: Upper Bound (section 5.1).

    It bounds the throughput of whatever is in `starts`, strategies of `problem`, with which the search begins, beside
    all policies. First come, first served has anomalies: a strategy may take longer with free compression, as tasks
    change their order. So what it takes with compression counts, too.

    Args:
        budget_s: seconds of the local search.
    """
    free = Problem(problem.model, problem.system, problem.compressor, problem.constraints, True, problem.in_flight)
    again = zip(starts, free.native.ends([chosen.strategy for chosen in starts]), strict=True)
    known = [replace(chosen, end_ns=min(end, chosen.end_ns)) for chosen, end in again]
    found = near_optimal(free, [policy(free) for policy in POLICIES.values()] + known, budget_s)
    return _by("Upper Bound", found)


def brute_force(problem: Problem, most: int = 10_000_000) -> Chosen:
    """Return the best of all strategies. Raises ConfigError where there are more than `most`."""
    found = problem.native.brute_force(range(len(problem.options)), most)
    return Chosen(found.strategy, found.end_ns, "brute force")


def _by(name: str, chosen: Chosen) -> Chosen:
    return replace(chosen, by=name)


def _espresso_in(problem: Problem, space: Constraints, by: str) -> Chosen:
    return _by(by, algorithm2(problem, algorithm1(problem, spaces.on(space, "training"))))


def _each_alone(problem: Problem, among: Sequence[int], by: str) -> Chosen:
    """Return the strategy by which the tasks of each tensor take the least time, one after the other."""
    best = []
    for size in range(len(problem.numel)):
        times = problem.native.times(size)
        best.append(min(among, key=times.__getitem__))
    return _chosen(problem, [best[size] for size in problem.sizes], by)


def _all_by(problem: Problem, name: str, least_bytes: int, by: str) -> Chosen:
    """Return the strategy that gives an option to all tensors of one size, if it is allowed."""
    plain = start(problem).strategy[0]
    option = next(iter(problem.where(Constraints(only=(name,)))), plain)
    tensors = problem.model.tensors
    large = [ELEMENT_BYTES * tensor.numel >= least_bytes for tensor in tensors]
    return _chosen(problem, [option if is_large else plain for is_large in large], by)


def _chosen(problem: Problem, strategy: Sequence[int], by: str) -> Chosen:
    return Chosen(tuple(strategy), problem.end_ns(strategy), by)
