"""A planning problem: a model's tensors, the options that each may take, and what their tasks take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hvd_compress.errors import PlanError
from hvd_compress.native.planner import NativeProblem
from hvd_compress.planner.holdings import Step, steps
from hvd_compress.planner.options import UNCOMPRESSED, Constraints, Option, options
from hvd_compress.planner.prices import Prices
from hvd_compress.planner.profiles import CompressorProfile, ModelProfile, SystemProfile

LANES = ("training", "host", "within", "across")
"""What serves one task at a time: the training device, a host's CPU, the links within a host and across hosts."""


Walk = Callable[[Option, int, int], tuple[Step, ...]]
"""The steps of an option, by hosts and ranks of each: those of the tree, or as it is really run."""


@dataclass(frozen=True)
class Lanes:
    """On which lane a task of a system runs. A flat collective keeps the link across hosts busy, if there is one."""

    hosts: int

    def number(self, step: Step) -> int:
        place = step.task.place
        if place == "all":
            place = "across" if self.hosts > 1 else "within"
        return LANES.index(place)


class Problem:
    """What is to be planned. A strategy gives each tensor the number of one of `options`.

    Attributes:
        model: whose tensors they are.
        options: all that are allowed, always in the order of the tree, and the uncompressed allreduce in any case.
        uncompressed: its number.
        native: the same for the searches in C++.
    """

    def __init__(
        self,
        model: ModelProfile,
        system: SystemProfile,
        compressor: CompressorProfile,
        constraints: Constraints | None = None,
        free: bool = False,
        walk: Walk = steps,
    ) -> None:
        """`free`: compression takes no time. Raises PlanError where no option is left."""
        prices = Prices(system, compressor, free)
        allowed = constraints or Constraints()
        found = [
            option
            for option in options()
            if option == UNCOMPRESSED or (allowed.allow(option) and option.devices <= set(prices.devices))
        ]
        self.model, self.system, self.compressor = model, system, compressor
        self.options: tuple[Option, ...] = tuple(found)
        self.uncompressed = self.options.index(UNCOMPRESSED)
        self.numel = tuple(sorted({tensor.numel for tensor in model.tensors}, reverse=True))
        walks = [walk(option, system.hosts, system.ranks_per_host) for option in self.options]
        kinds = {step: None for walk in walks for step in walk}  # in the order of their first use
        numbers = {step: number for number, step in enumerate(kinds)}
        lanes = Lanes(system.hosts)
        self.native = NativeProblem(
            backward_ns=[round(tensor.backward_us * 1e3) for tensor in model.tensors],
            size=[self.numel.index(tensor.numel) for tensor in model.tensors],
            options=[[numbers[step] for step in walk] for walk in walks],
            lane=[lanes.number(step) for step in kinds],
            prices=[[prices.ns(step, numel) for step in kinds] for numel in self.numel],
        )

    @cached_property
    def _numbers(self) -> dict[Option, int]:
        return {option: number for number, option in enumerate(self.options)}

    def number(self, option: Option) -> int:
        """Return the number of an option. Raises PlanError for one that is not allowed here."""
        found = self._numbers.get(option)
        if found is None:
            raise PlanError(f"option {str(option)!r} is not one of the {len(self.options)} that are allowed here")
        return found

    @cached_property
    def twins(self) -> list[int]:
        """Of each option, the number of the one with all compression on the host; its own where that is not allowed."""
        moved = (self._numbers.get(option.on("host"), number) for option, number in self._numbers.items())
        return list(moved)

    def where(self, constraints: Constraints) -> list[int]:
        """Return the numbers of those options that constraints allow."""
        return [number for number, option in enumerate(self.options) if constraints.allow(option)]

    def uniform(self, option: Option) -> tuple[int, ...]:
        """Return the strategy that gives every tensor one option."""
        return (self.number(option),) * len(self.model.tensors)

    def end_ns(self, strategy: Sequence[int]) -> int:
        """Return F of a strategy, the time of the backward pass with all synchronisation, in nanoseconds."""
        return self.native.ends([strategy])[0]
