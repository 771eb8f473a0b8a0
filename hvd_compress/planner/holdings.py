"""What a rank holds at each task of an option: how many payloads, of which part of the tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from hvd_compress.planner.options import COMM1, COMM2, Option, Task

WHOLE = ("reduce", "gather", "broadcast")
"""Routines with a root, which works on all; the others leave each rank a part, or give all parts to everyone."""


@dataclass(frozen=True)
class Holding:
    """What an active rank holds.

    Attributes:
        held: it is one of so many parts of the tensor.
        payloads: how many stand for it, from all ranks whose gradients were not added yet; 0: it is not compressed.
        parts: a payload is of one of so many parts of the tensor.
        active: ranks of a host that hold something to go on with.
    """

    held: int
    payloads: int
    parts: int
    active: int


@dataclass(frozen=True)
class Step:
    """A task, and what it finds: all that its price depends on beside the size of the tensor and the system."""

    task: Task
    before: Holding


@cache
def steps(option: Option, hosts: int, ranks_per_host: int) -> tuple[Step, ...]:
    """Return the tasks of an option with what they find.

    A scatter leaves each of r ranks one of r parts, with a payload of it from each of them; a root gets everything, and
    others wait. An all-gather of payloads leaves everyone with r times as many, as nothing adds them.
    """
    ranks = {"all": hosts * ranks_per_host, "within": ranks_per_host, "across": hosts}
    now, found = Holding(1, 0, 1, ranks_per_host), []
    for task in option.tasks:
        found.append(Step(task, now))
        now = _after(now, task, ranks.get(task.place, 1), ranks_per_host)
    return tuple(found)


def _after(now: Holding, task: Task, ranks: int, ranks_per_host: int) -> Holding:
    if task.action == "comp":
        return replace(now, payloads=1, parts=now.held)
    if task.action == "decomp":
        return replace(now, payloads=0)
    active = now.active
    if task.place != "across" and task.routine in WHOLE:
        active = ranks_per_host if task.routine == "broadcast" else 1
    payloads = now.payloads if task.routine == "broadcast" else now.payloads * ranks
    held, parts = now.held, now.parts
    if task.action.startswith(COMM1) and task.routine not in WHOLE:
        held, parts = held * ranks, parts * ranks
    elif task.action.startswith(COMM2) and task.routine == "allgather":
        held //= ranks
    return Holding(held, payloads, parts, active)
