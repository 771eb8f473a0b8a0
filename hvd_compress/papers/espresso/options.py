"""Compression options: Espresso's decision tree as data (section 4.2, Figure 8), and the constraints that prune it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from hvd_compress.errors import PlanError, did_you_mean
from hvd_compress.papers.espresso.tree.walk import Task

DEVICES = ("training", "host")
"""The device that trains, and the CPU beside it. The paper's GPU and CPU."""

COMPRESSED = "_compressed"
ROUTINES: Mapping[str, tuple[str, ...]] = {
    "comm": ("allreduce",),
    "comm1": ("reduce_scatter", "reduce"),
    "comm2": ("allgather", "broadcast"),
    "comm" + COMPRESSED: ("allgather",),
    "comm1" + COMPRESSED: ("alltoall", "gather"),
    "comm2" + COMPRESSED: ("allgather", "broadcast"),
}
"""Table 3: the six communication tasks and their routines. The i-th of a second step is for the i-th of a first one."""
PAIRS = (0, 1)

RULES: Mapping[str, tuple[str, ...]] = {
    "option": ("link=all flat", "link=within hierarchical"),
    "flat": (
        "link.comm",
        "outer=* link.comm1.outer T1",
        "comp link.comm_compressed decomp",
        "comp outer=* link.comm1_compressed.outer T2",
    ),
    "hierarchical": (
        "outer=* link.comm1.outer T3",
        "outer=* link.comm1.outer comp T4",
        "outer=* comp link.comm1_compressed.outer decomp T3",
        "outer=* comp link.comm1_compressed.outer decomp comp T4",
        "outer=* comp link.comm1_compressed.outer T4",
    ),
    "T1": ("link.comm2.outer", "comp link.comm2_compressed.outer decomp"),
    "T2": ("link.comm2_compressed.outer decomp", "decomp T1"),
    "T3": ("across.comm T1", "inner=* across.comm1.inner T5"),
    "T4": (
        "across.comm_compressed T2",
        "inner=* across.comm1_compressed.inner across.comm2_compressed.inner T2",
        "inner=* across.comm1_compressed.inner decomp T5",
    ),
    "T5": ("across.comm2.inner T1", "comp across.comm2_compressed.inner T2"),
}
"""The tree. T1 to T5 are the sub-trees of Figure 8. `outer=*` branches by the pair of routines of the outer two steps,
and `inner=*` by that across hosts; `comp` and `decomp` branch by device."""


@dataclass(frozen=True)
class PlacedTask(Task):
    """A step of an option as collectives have it, and the device of a compression or decompression."""

    device: str = ""

    @property
    def communicates(self) -> bool:
        return bool(self.link)

    def __str__(self) -> str:
        return super().__str__() if self.communicates else f"{self.verb}@{self.device}"


@dataclass(frozen=True)
class Option:
    """How a tensor is synchronised: tasks in their order. `str` names it, with a star where payloads travel."""

    tasks: tuple[PlacedTask, ...]

    @property
    def compressions(self) -> int:
        """How often the tensor is compressed."""
        return sum(task.verb == "comp" for task in self.tasks)

    @property
    def devices(self) -> frozenset[str]:
        """What compresses and decompresses."""
        return frozenset(task.device for task in self.tasks if not task.communicates)

    @property
    def hierarchical(self) -> bool:
        return any(task.link == "within" for task in self.tasks)

    def on(self, device: str) -> Option:
        """Return the same option with all compression on one device."""
        moved = (task if task.communicates else replace(task, device=device) for task in self.tasks)
        return Option(tuple(moved))

    @property
    def path(self) -> str:
        """The name by which `collectives` carry it out, on one device: "comp allgather*@all decomp"."""
        return " ".join(str(task) if task.communicates else task.verb for task in self.tasks)

    def __str__(self) -> str:
        return " ".join(map(str, self.tasks))


UNCOMPRESSED = Option((PlacedTask("allreduce", "all"),))


@dataclass(frozen=True)
class Constraints:
    """What a user allows.

    Attributes:
        devices: that may compress.
        most_compressions: of one tensor; None for any number.
        least_compressions: of one tensor.
        mixed: whether an option may compress on several devices.
        flat, hierarchical: whether such communication is allowed.
        payloads_within: whether payloads may travel between the ranks of a host, in hierarchical communication.
        only: names of options, beside which no others are; empty for all.
    """

    devices: tuple[str, ...] = DEVICES
    most_compressions: int | None = None
    mixed: bool = True
    flat: bool = True
    hierarchical: bool = True
    payloads_within: bool = True
    only: tuple[str, ...] = ()
    least_compressions: int = 0

    def __post_init__(self) -> None:
        unknown = [device for device in self.devices if device not in DEVICES]
        if unknown:
            close = did_you_mean(unknown[0], DEVICES)
            raise PlanError(f"unknown device {unknown[0]!r}" + (close or f"; known are {', '.join(DEVICES)}"))
        for name in self.only:
            by_name(name)

    def __str__(self) -> str:
        """What is asked for, without what is as usual."""
        asked = (field for field in fields(self) if getattr(self, field.name) != field.default)
        return ", ".join(f"{field.name} = {getattr(self, field.name)}" for field in asked) or "no constraints"

    def allow(self, option: Option) -> bool:
        """Whether an option is one of the tree that is left."""
        count = option.compressions
        few = self.least_compressions <= count and (self.most_compressions is None or count <= self.most_compressions)
        form = self.hierarchical if option.hierarchical else self.flat
        within = self.payloads_within or not any(task.compressed and task.link == "within" for task in option.tasks)
        devices = option.devices <= set(self.devices) and (self.mixed or len(option.devices) < 2)
        named = not self.only or str(option) in self.only
        return few and form and within and devices and named


def options(constraints: Constraints | None = None) -> tuple[Option, ...]:
    """Return all options of the tree, always in the same order: 4341 with two devices, 174 with one.

    Raises PlanError where none is left.
    """
    found = _all() if constraints is None else tuple(filter(constraints.allow, _all()))
    if not found:
        raise PlanError(f"no option is left: {constraints}")
    return found


def by_name(name: str) -> Option:
    """Return the option that a name means. Raises PlanError for one that is not in the tree."""
    found = _names().get(name)
    if found is None:
        alike = [known for known in _names() if known.count(" ") == name.count(" ")]  # all 4341 would take seconds
        lists = f": `hvd-compress plan options` lists them, such as {str(UNCOMPRESSED)!r}"
        raise PlanError(f"unknown option {name!r}" + (did_you_mean(name, alike) or lists))
    return found


@cache
def _names() -> dict[str, Option]:
    return {str(option): option for option in _all()}


@cache
def _all() -> tuple[Option, ...]:
    return tuple(Option(tasks) for tasks in _expand(("option",), {}))


def _expand(symbols: Sequence[str], bound: Mapping[str, str]) -> Iterator[tuple[PlacedTask, ...]]:
    """Yield what a sequence of symbols can become, with the links and pairs that are bound so far."""
    if not symbols:
        yield ()
        return
    first, rest = symbols[0], symbols[1:]
    if first in RULES:
        for alternative in RULES[first]:
            yield from _expand((*alternative.split(), *rest), bound)
    elif "=" in first:
        name, value = first.split("=")
        for choice in map(str, PAIRS) if value == "*" else (value,):
            yield from _expand(rest, {**bound, name: choice})
    else:
        for task in _tasks(first, bound):
            for others in _expand(rest, bound):
                yield (task, *others)


def _tasks(symbol: str, bound: Mapping[str, str]) -> Iterator[PlacedTask]:
    if symbol in ("comp", "decomp"):
        yield from (PlacedTask(symbol, device=device) for device in DEVICES)
        return
    link, action, *pair = symbol.split(".")
    routine = ROUTINES[action][int(bound[pair[0]]) if pair else 0]
    yield PlacedTask(routine, bound.get(link, link), action.endswith(COMPRESSED))
