"""Forcing Open MPI's algorithms, and seeing that they are what runs: one communicator for each algorithm of allreduce.

Open MPI reads its control variables when a communicator is made, so communicators with different algorithms can live
side by side. Whether a setting took effect depends on the release and on which collective component won, so each
communicator is tried with an operation that records the lengths it is asked to sum: every algorithm leaves a pattern of
its own.

Nothing can be recorded of a broadcast or an all-gather. Their algorithms share the four communicators, so none is made
for them: each communicator reads all its settings at once, from the same component, and the allreduce that was seen to
obey stands for the others. (MPI_Allgather alone, for equal lengths: releases differ in whether that of
MPI_Allgatherv can be set, and 5.0.11 refuses.)
"""

from __future__ import annotations

from typing import Any

from hvd_compress.engines import control_variables
from hvd_compress.engines.base import ALGORITHMS
from hvd_compress.engines.layout import largest_power_of_two
from hvd_compress.engines.mpi_library import MPI
from hvd_compress.engines.names import SEGMENT_BYTES

# Open MPI's numbers. An allreduce by reduce + broadcast uses the broadcast of its communicator, so a tree of both needs
# the binomial one; the other algorithms of allreduce call neither broadcast nor all-gather.
_ALLREDUCE = {"tree": 2, "recursive_doubling": 3, "ring": 4, "rabenseifner": 6}
_BROADCAST = {"binomial": 6, "pipeline_16k": 3, "pipeline_60k": 3, "scatter_allgather": 8}
_ALLGATHER = {"ring": 4, "bruck": 2}

SETTINGS = {
    "tree": ("binomial", "bruck"),
    "recursive_doubling": ("pipeline_60k", "bruck"),
    "ring": ("pipeline_16k", "ring"),
    "rabenseifner": ("scatter_allgather", "ring"),
}
"""By algorithm of allreduce: those of broadcast and all-gather on the same communicator."""

CARRIER: dict[tuple[str, str], str] = {
    **{("allgather", allgather): name for name, (_, allgather) in reversed(SETTINGS.items())},
    **{("broadcast", broadcast): name for name, (broadcast, _) in SETTINGS.items()},
}
"""By verb and algorithm: the communicator that runs it, by its algorithm of allreduce."""


def _controls(name: str) -> dict[str, int]:
    broadcast, allgather = SETTINGS[name]
    return {
        "coll_tuned_use_dynamic_rules": 1,
        "coll_tuned_allreduce_algorithm": _ALLREDUCE[name],
        "coll_tuned_reduce_algorithm": 5 if name == "tree" else 0,  # binomial
        "coll_tuned_bcast_algorithm": _BROADCAST[broadcast],
        "coll_tuned_bcast_algorithm_segmentsize": SEGMENT_BYTES.get(broadcast, 0),
        "coll_tuned_allgather_algorithm": _ALLGATHER[allgather],
    }


CONTROLS: dict[str, dict[str, int]] = {name: _controls(name) for name in SETTINGS}

Lengths = list[int]


def forcible_algorithms() -> tuple[str, ...]:
    """Return the algorithms that this MPI library lets one ask for. Local: one process can find out without others.

    Whether it then obeys is only seen with several ranks, see `forced_communicators`.
    """
    return tuple(name for name in ALGORITHMS if _can_be_set(CONTROLS[name]))


def _can_be_set(controls: dict[str, int]) -> bool:
    if MPI.get_vendor()[0] != "Open MPI":
        return False
    try:
        with control_variables.temporarily(controls):
            return True
    except LookupError:
        return False


def forced_communicators(comm: MPI.Intracomm) -> dict[str, MPI.Intracomm]:
    """Return a duplicate of `comm` for each algorithm that was seen to run. Collective, same keys on all ranks."""
    offers = comm.allgather(forcible_algorithms())
    names = [name for name in ALGORITHMS if all(name in offer for offer in offers)]
    forced = {name: _duplicate(comm, CONTROLS[name]) for name in names}
    count = probe_count(comm.size)
    seen_by_rank = comm.allgather({name: observe(forced[name], count) for name in names})
    for name in names:
        if sorted(seen[name] for seen in seen_by_rank) != expected(name, comm.size, count):
            forced.pop(name).Free()
    return forced


def _duplicate(comm: MPI.Intracomm, controls: dict[str, int]) -> MPI.Intracomm:
    """Duplicate under these control variables; the hint outranks components such as han and sm, which ignore them."""
    info = MPI.Info.Create({"ompi_comm_coll_preference": "tuned"})
    try:
        with control_variables.temporarily(controls):
            return comm.Dup_with_info(info)
    finally:
        info.Free()


def observe(comm: MPI.Intracomm, count: int) -> Lengths:
    """Return the numbers of elements that this rank summed, call by call, in one allreduce of `count` elements."""
    lengths: Lengths = []
    values = bytearray(8 * count)

    def record(given: Any, _total: Any, _type: MPI.Datatype) -> None:
        lengths.append(given.nbytes // 8)

    recorder = MPI.Op.Create(record, commute=True)
    try:
        comm.Allreduce(MPI.IN_PLACE, [values, count, MPI.INT64_T], op=recorder)
    finally:
        recorder.Free()
    return lengths


def probe_count(world_size: int) -> int:
    """Return a number of elements that divides evenly in every algorithm."""
    return 2 * world_size * largest_power_of_two(world_size)


def expected(algorithm: str, world_size: int, count: int) -> list[Lengths]:
    """Return the lengths that the ranks sum in Open MPI's `algorithm`, one list a rank, in sorted order.

    With 2 ranks ring and Rabenseifner are one and the same. Beyond the largest power of two `core`, recursive doubling
    adds the `guests` to as many hosts before it starts; Rabenseifner lets the two sum half of their data each.
    """
    core = largest_power_of_two(world_size)
    guests, rounds = world_size - core, core.bit_length() - 1
    if algorithm == "ring":
        return [[count // world_size] * (world_size - 1)] * world_size
    if algorithm == "tree":
        return sorted([count] * _children(rank, world_size) for rank in range(world_size))
    if algorithm == "recursive_doubling":
        plain = [count] * rounds
        return sorted([[]] * guests + [[count, *plain]] * guests + [plain] * (core - guests))
    halves = [count >> level for level in range(1, rounds + 1)]
    return sorted([[count // 2]] * guests + [[count // 2, *halves]] * guests + [halves] * (core - guests))


def _children(rank: int, world_size: int) -> int:
    """Return how many ranks hand their sum to `rank` in a binomial tree with root 0."""
    distances = [1 << level for level in range(world_size.bit_length())]
    below = [distance for distance in distances if rank == 0 or distance < rank & -rank]
    return sum(rank + distance < world_size for distance in below)
