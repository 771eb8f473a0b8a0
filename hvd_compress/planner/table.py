"""The options of a system as numbers: kinds of tasks, the lane of each, and the options as lists of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from hvd_compress.planner.options import UNCOMPRESSED, Constraints, Option, PlacedTask, options
from hvd_compress.schemes.tree.counts import Step, steps

LANES = ("training", "host", "within", "across")
"""What serves one task at a time: the training device, a host's CPU, the links within a host and across hosts."""


@dataclass(frozen=True, eq=False)
class OptionTable:
    """All options that are allowed, and their tasks by number. It depends neither on the model nor on times.

    Attributes:
        options: in the order of the tree, and the uncompressed allreduce in any case.
        kinds: the distinct tasks, with what each finds: a price depends on the kind and the size of the tensor.
        lanes: of each kind, an index of LANES.
        tasks: of each option, its kinds.
    """

    options: tuple[Option, ...]
    kinds: tuple[Step[PlacedTask], ...]
    lanes: tuple[int, ...]
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
    constraints: Constraints, devices: tuple[str, ...], hosts: int, ranks_per_host: int, one_at_a_time: bool = False
) -> OptionTable:
    """Return the table of a system; for a second problem with the same one it is there already.

    Args:
        devices: that can compress.
        one_at_a_time: whether all collectives keep the link of flat ones busy: a job's pipeline launches one at a time.

    Raises:
        PlanError: constraints leave no option.
    """
    allowed = (option for option in options() if _allowed(option, constraints, devices))
    found = tuple(allowed)
    walks = [steps(option.tasks, hosts, ranks_per_host) for option in found]
    numbers: dict[Step[PlacedTask], int] = {}  # in the order of their first use
    tasks = tuple(tuple(numbers.setdefault(step, len(numbers)) for step in walk) for walk in walks)
    kinds = tuple(numbers)
    return OptionTable(found, kinds, tuple(_lane(step, hosts, one_at_a_time) for step in kinds), tasks)


def _allowed(option: Option, constraints: Constraints, devices: tuple[str, ...]) -> bool:
    return option == UNCOMPRESSED or (constraints.allow(option) and option.devices <= set(devices))


def _lane(step: Step[PlacedTask], hosts: int, one_at_a_time: bool) -> int:
    """Return where a task runs. A flat collective keeps the link across hosts busy, if there is one."""
    place = step.task.link or step.task.device
    if place == "all" or (one_at_a_time and step.task.communicates):
        place = "across" if hosts > 1 else "within"
    return LANES.index(place)
