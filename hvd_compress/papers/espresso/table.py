"""The options of a system as numbers: kinds of tasks, the lane of each, and the options as lists of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from hvd_compress.papers.espresso.options import UNCOMPRESSED, Constraints, Option, PlacedTask, options
from hvd_compress.papers.espresso.tree.counts import Step, steps

LANES = ("training", "host", "within", "across", "latency")
"""What serves one task at a time: the training device, a host's CPU, the links within a host and across hosts, and a
track of a job's pipeline, which waits."""
LATENCY = LANES.index("latency")


@dataclass(frozen=True, eq=False)
class OptionTable:
    """All options that are allowed, and their tasks by number. It depends neither on the model nor on times.

    Attributes:
        options: in the order of the tree, and the uncompressed allreduce in any case.
        kinds: the distinct tasks, with what each finds: a price depends on the kind and the size of the tensor. Where
            collectives may be in flight together, a flat one is two tasks, its latency and its bytes.
        lanes: of each kind, an index of LANES.
        whole: of each kind, whether its price is that of the task; else that of its latency, or of all but that, by its
            lane.
        tasks: of each option, its kinds.
    """

    options: tuple[Option, ...]
    kinds: tuple[Step[PlacedTask], ...]
    lanes: tuple[int, ...]
    whole: tuple[bool, ...]
    tasks: tuple[tuple[int, ...], ...]

    @cached_property
    def numbers(self) -> dict[Option, int]:
        return {option: number for number, option in enumerate(self.options)}

    @cached_property
    def twins(self) -> list[int]:
        """Of each option, the number of the one with all compression on the host; its own where that is not allowed."""
        moved = (self.numbers.get(option.on("host"), number) for option, number in self.numbers.items())
        return list(moved)

    @cached_property
    def _found(self) -> dict[Constraints, list[int]]:
        return {}

    def where(self, constraints: Constraints) -> list[int]:
        """Return the numbers of those options that constraints allow."""
        if constraints not in self._found:
            allowed = (number for number, option in enumerate(self.options) if constraints.allow(option))
            self._found[constraints] = list(allowed)
        return self._found[constraints]


@lru_cache(maxsize=16)
def option_table(
    constraints: Constraints, devices: tuple[str, ...], hosts: int, ranks_per_host: int, in_flight: int | None = None
) -> OptionTable:
    """Return the table of a system; for a second problem with the same one it is there already.

    Args:
        devices: that can compress.
        in_flight: how many buckets a job's pipeline exchanges at a time: all collectives keep the link of flat ones
            busy, but where there are several in flight a flat one only while its bytes travel, not for its latency.
            None: links within and across hosts pipeline, as in the paper.

    Raises:
        PlanError: constraints leave no option.
    """
    allowed = (option for option in options() if _allowed(option, constraints, devices))
    found = tuple(allowed)
    walks = [steps(option.tasks, hosts, ranks_per_host) for option in found]
    numbers: dict[tuple[Step[PlacedTask], int, bool], int] = {}  # in the order of their first use
    tasks = tuple(
        tuple(numbers.setdefault(kind, len(numbers)) for step in walk for kind in _kinds(step, hosts, in_flight))
        for walk in walks
    )
    kinds, lanes, whole = zip(*numbers, strict=True)
    return OptionTable(found, kinds, lanes, whole, tasks)


def _allowed(option: Option, constraints: Constraints, devices: tuple[str, ...]) -> bool:
    return option == UNCOMPRESSED or (constraints.allow(option) and option.devices <= set(devices))


def _kinds(step: Step[PlacedTask], hosts: int, in_flight: int | None) -> list[tuple[Step[PlacedTask], int, bool]]:
    """Return what a step is made of, and where. A flat collective keeps the link across hosts busy, if there is one.

    Those of groups stay on a pipeline's first track, one at a time.
    """
    place = step.task.link or step.task.device
    is_flat = place == "all"
    if is_flat or (in_flight is not None and step.task.communicates):
        place = "across" if hosts > 1 else "within"
    lane = LANES.index(place)
    if is_flat and in_flight is not None and in_flight > 1:
        return [(step, LATENCY, False), (step, lane, False)]
    return [(step, lane, True)]
