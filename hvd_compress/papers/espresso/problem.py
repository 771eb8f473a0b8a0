"""A planning problem: a model's tensors, the options that each may take, and what their tasks take."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.kernels import NativeProblem
from hvd_compress.papers.espresso.options import UNCOMPRESSED, Constraints, Option, PlacedTask
from hvd_compress.papers.espresso.prices import Prices
from hvd_compress.papers.espresso.table import LANES as LANES
from hvd_compress.papers.espresso.table import LATENCY, option_table
from hvd_compress.papers.espresso.tree.counts import Step
from hvd_compress.profiler.profiles import CompressorProfile, ModelProfile, SystemProfile


class Problem:
    """What is to be planned. A strategy gives each tensor the number of one of `options`.

    Attributes:
        model: whose tensors they are.
        constraints: what a user allows.
        in_flight: how many buckets are exchanged at a time, by a job's pipeline; None: as in the paper, where the links
            within and across hosts pipeline between tensors.
        options: all that are allowed, always in the order of the tree, and the uncompressed allreduce in any case.
        uncompressed: its number.
        numel: the distinct sizes of tensors, in descending order.
        sizes: of each tensor, the number of its size.
        native: the same for the searches in C++.
    """

    def __init__(
        self,
        model: ModelProfile,
        system: SystemProfile,
        compressor: CompressorProfile,
        constraints: Constraints | None = None,
        free: bool = False,
        in_flight: int | None = None,
    ) -> None:
        """`free`: compression takes no time. Raises PlanError where no option is left."""
        prices = Prices(system, compressor, free)
        self.model, self.system, self.compressor = model, system, compressor
        self.constraints, self.in_flight = constraints or Constraints(), in_flight
        table = option_table(self.constraints, prices.devices, system.hosts, system.ranks_per_host, in_flight)
        self._table = table
        self.options: tuple[Option, ...] = table.options
        self.uncompressed = self.number(UNCOMPRESSED)
        self.numel = tuple(sorted({tensor.numel for tensor in model.tensors}, reverse=True))
        number = {numel: size for size, numel in enumerate(self.numel)}
        self.sizes = tuple(number[tensor.numel] for tensor in model.tensors)
        self._prices = [
            [_price(prices, *kind, numel) for kind in zip(table.kinds, table.lanes, table.whole, strict=True)]
            for numel in self.numel
        ]
        self.native = NativeProblem(
            backward_ns=[round(tensor.backward_us * 1e3) for tensor in model.tensors],
            size=self.sizes,
            options=table.tasks,
            lane=table.lanes,
            prices=self._prices,
            tracks=in_flight or 1,
        )

    def number(self, option: Option) -> int:
        """Return the number of an option. Raises PlanError for one that is not allowed here."""
        found = self._table.numbers.get(option)
        if found is None:
            raise PlanError(f"option {str(option)!r} is not one of the {len(self.options)} that are allowed here")
        return found

    @property
    def twins(self) -> list[int]:
        """Of each option, the number of the one with all compression on the host; its own where that is not allowed."""
        return self._table.twins

    def where(self, constraints: Constraints) -> list[int]:
        """Return the numbers of those options that constraints allow."""
        return self._table.where(constraints)

    def uniform(self, option: Option) -> tuple[int, ...]:
        """Return the strategy that gives every tensor one option."""
        return (self.number(option),) * len(self.model.tensors)

    def task(self, tensor: int, option: int, number: int) -> PlacedTask:
        """Return the how manyth task of a tensor in its timeline, where tasks that take no time are left out."""
        prices = self._prices[self.sizes[tensor]]
        kinds = [kind for kind in self._table.tasks[option] if prices[kind]]
        return self._table.kinds[kinds[number]].task

    def end_ns(self, strategy: Sequence[int]) -> int:
        """Return F of a strategy, the time of the backward pass with all synchronisation, in nanoseconds."""
        return self.native.ends([strategy])[0]


def _price(prices: Prices, step: Step[PlacedTask], lane: int, is_whole: bool, numel: int) -> int:
    if is_whole:
        return prices.ns(step, numel)
    latency_ns = prices.latency_ns(step, numel)
    return latency_ns if lane == LATENCY else prices.ns(step, numel) - latency_ns
