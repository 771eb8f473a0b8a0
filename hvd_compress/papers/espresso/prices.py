"""What each task of an option takes, from the profiles of compressor and system (Espresso, section 4.3)."""

from __future__ import annotations

from functools import cached_property

from hvd_compress.cost import formulas
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.options import DEVICES, PlacedTask
from hvd_compress.papers.espresso.tree.counts import Step
from hvd_compress.profiler.profiles import ELEMENT_BYTES, LONGEST_US, CompressorProfile, SystemProfile

ALGORITHMS = {
    "allreduce": ("ring", "recursive_doubling", "rabenseifner"),
    "broadcast": ("binomial", "scatter_allgather"),
    "reduce": ("binomial", "scatter_allgather"),
}
"""To choose from: the fastest for each size. A reduce is a broadcast backwards. All others have one."""


class Prices:
    """Nanoseconds of steps, by the number of elements of the tensor.

    - A call of r ranks takes steps * alpha + bytes * beta, by the formulas of `cost`, or what was measured; a
      reduce what a reduce-scatter and a gather of the shards were measured to take, of which collectives make it. With
      one rank it takes nothing, and is left out.
    - Across hosts all active ranks of a host share its link, which carries the bytes of all of them.
    - A flat call waits for the slower of the links at each step.
    - Compression takes what it takes for as many elements; decompression so for each payload.
    - The CPU of a host compresses for all its active ranks, one after the other.
    """

    def __init__(self, system: SystemProfile, compressor: CompressorProfile, free: bool = False) -> None:
        """`free`: compression and decompression take no time, the paper's upper bound of throughput."""
        self._system, self._compressor, self._free = system, compressor, free
        self._times: dict[tuple[str, str], Curve] = {}
        for device, times in compressor.devices.items():
            self._times["comp", device] = times.compress.curve()
            self._times["decomp", device] = times.decompress.curve()

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that can compress."""
        return tuple(device for device in DEVICES if ("comp", device) in self._times)

    def ns(self, step: Step[PlacedTask], numel: int) -> int:
        """Return the whole nanoseconds of a step of a tensor; 0 where there is nothing to do.

        Raises PlanError for compression on a device of which the compressor has no profile, and where it would take
        longer than LONGEST_US.
        """
        seconds = self._communication_s(step, numel) if step.task.communicates else self._compression_s(step, numel)
        if not seconds <= 1e-6 * LONGEST_US:
            where = "within, across: of the system" if step.task.communicates else "devices: of the compressor"
            raise PlanError(
                f"{where}: {step.task} would take {seconds:.3g} s for {numel:,} elements, and {1e-6 * LONGEST_US:,.0f} "
                "s are the most that is planned with"
            )
        return 0 if seconds == 0 else max(1, round(seconds * 1e9))

    def latency_ns(self, step: Step[PlacedTask], numel: int) -> int:
        """Return how much of ns() a flat call takes for a byte: its line is free meanwhile."""
        return min(self.ns(step, numel), round(1e9 * self._flat_s(step.task.verb, 1.0)))

    def _compression_s(self, step: Step[PlacedTask], numel: int) -> float:
        task, before = step.task, step.before
        curve = self._times.get((task.verb, task.device))
        if curve is None:
            raise PlanError(f"the profile of the compressor has no times of device {task.device!r}")
        if self._free:
            return 0.0
        compresses = task.verb == "comp"
        shared = before.active if task.device == "host" else 1
        elements = numel / (before.held if compresses else before.parts)
        return (1 if compresses else before.payloads) * shared * curve.seconds(max(1.0, elements))

    def _communication_s(self, step: Step[PlacedTask], numel: int) -> float:
        task, before = step.task, step.before
        size = numel / before.held * ELEMENT_BYTES
        if task.compressed:
            size = before.payloads * self._compressor.payload.nbytes(numel / before.parts)
        if task.link == "within":
            return self._link_s("within", task.verb, size, self._system.ranks_per_host)
        if task.link == "across":
            return self._link_s("across", task.verb, size * before.active, self._system.hosts)
        return self._flat_s(task.verb, size)

    def _flat_s(self, verb: str, size: float) -> float:
        system = self._system
        if system.ranks_per_host == 1:
            return self._link_s("across", verb, size, system.hosts)
        if system.hosts == 1:
            return self._link_s("within", verb, size, system.ranks_per_host)
        ranks = system.hosts * system.ranks_per_host
        alpha = max(system.within.alpha_us, system.across.alpha_us) * 1e-6
        within, across = 1 / system.within.bytes_per_s, 1 / system.across.bytes_per_s
        found = []
        for terms in _terms(verb, size, ranks):
            crossing = terms.bytes
            if verb == "alltoall":  # each rank of a host has something for each of another one
                crossing = system.ranks_per_host * (ranks - system.ranks_per_host) / ranks * size
            found.append(terms.steps * alpha + max(terms.bytes * within, crossing * across))
        return min(found)

    def _link_s(self, name: str, verb: str, size: float, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        measured = self._curves.get(name)
        parts = {"reduce_scatter": size, "gather": size / ranks} if verb == "reduce" else {verb: size}
        if measured is not None and all((part, "auto") in measured.by_key for part in parts):
            return sum(measured.seconds(part, "auto", each) for part, each in parts.items())
        link = self._system.within if name == "within" else self._system.across
        return min(t.seconds(link.alpha_us * 1e-6, 1 / link.bytes_per_s) for t in _terms(verb, size, ranks))

    @cached_property
    def _curves(self) -> dict[str, Curves]:
        return dict(self._system.curves())


def _terms(verb: str, size: float, ranks: int) -> list[formulas.Terms]:
    """Return the terms of the algorithms to choose from."""
    formula = formulas.VERBS["broadcast" if verb == "reduce" else verb]
    return [formula(size, ranks, algorithm) for algorithm in ALGORITHMS.get(verb, ("auto",))]
