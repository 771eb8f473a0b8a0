"""How much a rank holds at each task of an option, where all hosts are alike: `walk` in numbers alone, for pricing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, TypeVar

from hvd_compress.papers.espresso.tree.walk import LINKS, Task

AnyTask = TypeVar("AnyTask", bound=Task)

SCATTERS = ("reduce_scatter", "alltoall")
"""They leave each rank a part; an all-gather over the same link joins the parts again."""
ROOTED = ("reduce", "gather", "broadcast")
"""They have a root, which works on all."""


@dataclass(frozen=True)
class Count:
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
class Step(Generic[AnyTask]):
    """A task, and what it finds: all that its price depends on beside the size of the tensor and the system."""

    task: AnyTask
    before: Count


@cache
def steps(tasks: tuple[AnyTask, ...], hosts: int, ranks_per_host: int) -> tuple[Step[AnyTask], ...]:
    """Return the tasks of an option with what they find.

    A scatter leaves each of r ranks one of r parts, with a payload of it from each of them; a root gets everything, and
    others wait. An all-gather of payloads leaves everyone with r times as many, as nothing adds them.
    """
    ranks = dict(zip(LINKS, (hosts * ranks_per_host, ranks_per_host, hosts), strict=True))
    now, found = Count(1, 0, 1, ranks_per_host), []
    scattered = set[str]()  # links: the next all-gather over one, if there is any, joins the parts
    for task in tasks:
        found.append(Step(task, now))
        joins = task.verb == "allgather" and task.link in scattered
        now = _after(now, task, ranks[task.link], ranks_per_host, joins) if task.link else _coded(now, task)
        if task.verb in SCATTERS:
            scattered.add(task.link)
    return tuple(found)


def _coded(now: Count, task: Task) -> Count:
    return replace(now, payloads=1, parts=now.held) if task.verb == "comp" else replace(now, payloads=0)


def _after(now: Count, task: Task, ranks: int, ranks_per_host: int, joins: bool) -> Count:
    active = now.active
    if task.link != "across" and task.verb in ROOTED:
        active = ranks_per_host if task.verb == "broadcast" else 1
    payloads = now.payloads if task.verb == "broadcast" else now.payloads * ranks
    if task.verb in SCATTERS:
        return Count(now.held * ranks, payloads, now.parts * ranks, active)
    return Count(now.held // ranks if joins else now.held, payloads, now.parts, active)
