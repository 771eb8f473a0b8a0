"""Training on a clock that is not real: what steps of each arm take on a network that may change."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast
from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.names import ALGORITHMS
from hvd_compress.policies.auto.arms import Arm, Family, make_arms
from hvd_compress.policies.auto.chooser import Chooser
from hvd_compress.policies.auto.quality import CODED, candidates
from hvd_compress.request.request import Request
from hvd_compress.services.agreement import StepTimes
from hvd_compress.services.detector import Alarm

CAN = Capabilities(
    ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather"),
    ALGORITHMS,
    (torch.float32, torch.float16),
    hosts=(),
    takes_shorter=True,
)
KERNEL_S = {"dense": 0.0, "bf16": 0.5e-9, "int8": 1.5e-9, "int4": 1.5e-9, "int4 coded": 3.5e-9, "int3 coded": 3.5e-9}
"""Seconds an element and rank, compression and decompression together."""


@dataclass(frozen=True)
class Network:
    """Latency in seconds, bits a second, and how many ranks there are."""

    latency_s: float
    bandwidth: float
    ranks: int = 4


@dataclass
class Training:
    """What is simulated.

    Attributes:
        network: by step.
        buckets: elements of each.
        rest_s: of a step, before its backward pass.
        backward_s: of a step; kernels of compression are added to it.
        noise: standard deviation of the logarithm of what computes and what communicates.
        spikes: share of steps that take up to three times as long for another cause.
        slow: factor of the backward pass of one rank.
        varies: standard deviation of the logarithm of backward passes, as of batches by length.
    """

    network: Callable[[int], Network]
    buckets: tuple[int, ...] = (500_000,) * 8
    rest_s: float = 0.05
    backward_s: float = 0.1
    noise: float = 0.05
    spikes: float = 0.01
    slow: float = 1.0
    varies: float = 0.0
    seed: int = 0
    steps: list[tuple[int, float, float]] = field(default_factory=list)  # arm, seconds, those of the best arm

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._layouts = [Layout.of(numel) for numel in self.buckets]
        self._known: dict[object, StepTimes] = {}
        self._best_s: dict[Network, float] = {}

    def arms(self, network: Network) -> list[Arm]:
        """Return the arms, priced by measurements of a network that are noisy themselves."""
        wrong = [math.exp(self._random.gauss(0, 2 * self.noise)) for _ in range(2)]
        costs = Formulas(network.latency_s * wrong[0], 8 / network.bandwidth * wrong[1], network.ranks)
        prices = Priced(costs)
        return self._arms(network, prices, None)

    def _arms(self, network: Network, prices: Priced, kept: Arm | None) -> list[Arm]:
        request = Request(Cast())
        choices = Family(request, candidates("near"))
        return make_arms(choices, request, self._layouts, network.ranks, CAN, prices, kept)  # type: ignore[arg-type]

    def best_s(self, network: Network) -> float:
        """Return what a step of the best arm takes by right prices, whether or not it is left out for its loss."""
        prices = Priced(Formulas(network.latency_s, 8 / network.bandwidth, network.ranks))
        if network not in self._best_s:
            found = self._arms(network, prices, Arm(CODED, (), 0.0))
            sent = [each for each in found if not (each.candidate.if_coded and each.candidate.compressor.shorter)]
            self._best_s[network] = min(self.worth_s(each, network) for each in sent)
        return self._best_s[network]

    def worth_s(self, arm: Arm, network: Network) -> float:
        """Return what a step takes, times those that are needed."""
        return self.expected(arm, network).whole_s * arm.candidate.factor

    def expected(self, arm: Arm, network: Network) -> StepTimes:
        """Return what a step takes without noise: exchanges follow each other, each begins when its bucket is there."""
        key = arm.decisions, network
        if key not in self._known:
            self._known[key] = self._expected(arm, network)
        return self._known[key]

    def _expected(self, arm: Arm, network: Network) -> StepTimes:
        costs = Formulas(network.latency_s, 8 / network.bandwidth, network.ranks)
        kernels_s = KERNEL_S[arm.name.partition(" by ")[0]] * sum(self.buckets)
        backward_s = self.backward_s * self.slow + kernels_s
        clock = sent_s = 0.0
        for number, (decision, layout) in enumerate(zip(arm.decisions, self._layouts, strict=True)):
            ready = backward_s * (number + 1) / len(self.buckets)
            stages = decision.build().stages(layout, network.ranks)
            taken_s = sum(costs.seconds(s.verb, s.algorithm, s.size) for s in stages)
            clock, sent_s = max(clock, ready) + taken_s, sent_s + taken_s
        exchanging_s = max(clock, backward_s)
        return StepTimes(self.rest_s + exchanging_s, exchanging_s, exchanging_s - backward_s, kernels_s + sent_s)

    def taken(self, arm: Arm, network: Network) -> StepTimes:
        """Return what ranks agree on of a step: noise of ranks is met by the least of all."""
        exact = self.expected(arm, network)
        rest, backward, late = (math.exp(self._random.gauss(0, self.noise)) for _ in range(3))
        spike = 1 + 2 * self._random.random() if self._random.random() < self.spikes else 1.0
        longer = self.backward_s * (math.exp(self._random.gauss(0, self.varies)) - 1) if self.varies else 0.0
        waited_s = exact.waited_s * late * spike
        exchanging_s = (exact.exchanging_s - exact.waited_s) * backward * spike + longer + waited_s
        summed_s = exact.summed_s * late * spike
        return StepTimes(self.rest_s * rest + exchanging_s, exchanging_s, waited_s, summed_s)

    def run(self, steps: int) -> Chooser:
        """Train, and return what chose. Times are told a step late, as ranks agree on them."""
        arms = self.arms(self.network(0))
        chooser = Chooser([a.candidate.factor for a in arms], [a.predicted for a in arms], Alarm())
        pending: list[tuple[int, StepTimes]] = []
        under_way: list[tuple[int, StepTimes]] = []
        self.alarms: list[int] = []
        self.settled_at: list[int] = []
        was_settled = False
        for step in range(steps):
            network = self.network(step)
            arm = chooser.next()
            times = self.taken(arms[arm], network)
            best_s = min(self.best_s(network), *(self.worth_s(each, network) for each in arms))
            self.steps.append((arm, self.worth_s(arms[arm], network), best_s))
            if (window_s := chooser.record(under_way)) is not None:
                chooser.alarm.add(window_s)
            under_way = []
            if chooser.alarm.rings:
                self.alarms.append(step)
                chooser.alarm.answer()
                before, arms = arms[chooser.next()].decisions, self.arms(network)
                same = next((number for number, a in enumerate(arms) if a.decisions == before), None)
                chooser.again([a.candidate.factor for a in arms], [a.predicted for a in arms], same)
                pending, was_settled = [], False
                continue
            pending.append((arm, times))
            if len(pending) >= chooser.every:
                under_way, pending = pending, []
            if chooser.settled and not was_settled:
                self.settled_at.append(step)
                was_settled = True
        self.names = [each.candidate.name for each in arms]
        return chooser

    @property
    def regret(self) -> float:
        """What was lost over always taking the best arm, as a share."""
        return sum(seconds for _, seconds, _ in self.steps) / sum(best for _, _, best in self.steps) - 1


@dataclass(frozen=True)
class Priced:
    """As policies.prices.Prices, by formulas."""

    costs: Formulas
    source: str = "formulas"

    def by_path(self, found, layout):  # type: ignore[no-untyped-def]
        taken = {}
        for collective in found:
            stages = collective.stages(layout, self.costs.world_size)
            taken[collective.path] = sum(self.costs.seconds(s.verb, s.algorithm, s.size) for s in stages)
        return taken
