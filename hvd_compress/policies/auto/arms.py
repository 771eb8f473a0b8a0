"""Arms: by which compressor, and which paths, all buckets could travel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective
from hvd_compress.compressors import Cast
from hvd_compress.cost.local_steps import LocalStepsCost
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.limits import MAX_COUNT
from hvd_compress.policies.auto.quality import DENSE, Candidate
from hvd_compress.policies.fixed import decide
from hvd_compress.policies.open_paths import open_collectives, unforced
from hvd_compress.policies.prices import ByBytes, Prices, cheapest
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request, compression_device

MOST = 10
"""Arms that are tried, those that take the least by the curves: more would take more than 20 steps. Replayed with
benchmarks/results/controller-grid.json, four of them lose 3 % to the best of all, ten 2 %."""

CODING_S = 1.3e-9
"""Seconds in which one core codes an element of 4 bits, or decodes it, the mean of both (benchmarks/results/coded.md).
Curves decide whether that pays: what real steps would have to tell apart is less than their noise."""

CLEAR = 0.85
"""What exchanges of a candidate that is only chosen coded may take, over those of the best other arm, by measured
curves and times the steps that both need: what saves less is not worth a loss that only long trainings show."""

Ways = Mapping[Candidate, list[Collective]]
"""By candidate, the collectives by which it may carry a bucket; the first is what others are compared with."""


@dataclass(frozen=True)
class Arm:
    """How all buckets travel.

    Attributes:
        candidate: what it is called, and the steps that it needs.
        decisions: by bucket.
        predicted: what all their calls take, in seconds by measured curves; in bytes where nothing was measured.
    """

    candidate: Candidate
    decisions: tuple[Decision, ...]
    predicted: float

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def called(self) -> str:
        """By which compressor, coded or not, whatever its paths."""
        return self.name.partition(" by ")[0].removesuffix(" coded")

    @property
    def way(self) -> str:
        """In words: by which compressor and paths."""
        paths = ", ".join(dict.fromkeys(str(each.path) for each in self.decisions))
        return paths if self.name in paths else f"{self.name.partition(' by ')[0]} by {paths}"


class Choices(ABC):
    """What there is to choose from.

    Attributes:
        may_code: whether a coder makes arms shorter where that takes less time.
    """

    may_code: ClassVar[bool] = False

    def loss(self, candidate: Candidate) -> str:
        """Return what a choice other than the first one costs, in words, for its reason."""
        return ""

    def hint(self, arms: Sequence[Arm], step_s: float, waits_s: Sequence[float], world_size: int) -> str:
        """Return what no arm can do, in words, for the reason of a choice; empty where there is nothing to say.

        Args:
            step_s: seconds of a step, without what it waits for exchanges.
            waits_s: that, by arm.
        """
        return ""

    @abstractmethod
    def ways(self, layout: Layout, world_size: int, can: Capabilities) -> Ways:
        """Return by what a bucket may travel; the same candidates for all buckets, but those that cannot carry one."""

    @abstractmethod
    def unmeasured(self, layouts: Sequence[Layout], world_size: int, can: Capabilities) -> list[Decision]:
        """Return how buckets travel where nothing may be measured. Raises ConfigError where they cannot."""


@dataclass(frozen=True)
class Family(Choices):
    """Compressors, of which each travels by its fastest path, by curves or by real steps: where several paths are the
    fastest on some network, each is an arm, too. The first one is without compression.

    Attributes:
        weighs_local_steps: whether reasons say what local steps would take.
    """

    may_code = True
    request: Request
    candidates: tuple[Candidate, ...]
    weighs_local_steps: bool = False

    def loss(self, candidate: Candidate) -> str:
        steps = f"{candidate.factor:.3g} times the steps of dense to its loss (table)"
        return "as dense in loss (table)" if candidate.factor == 1 else steps

    def hint(self, arms: Sequence[Arm], step_s: float, waits_s: Sequence[float], world_size: int) -> str:
        """Say what local steps would take. It assumes the worst case, that ranks learn nothing alike."""
        own = [number for number, arm in enumerate(arms) if arm.called == "int4"]
        if not self.weighs_local_steps or not own:
            return ""
        now_s = step_s + min(waits_s[number] for number in own)
        exchange_s = min(arms[number].predicted for number in own)  # of a round, in which nothing is hidden
        found = LocalStepsCost(step_s, exchange_s, cosine=0.0, ranks=world_size)
        best = found.best()
        others_s = [arm.candidate.factor * (step_s + wait_s) for arm, wait_s in zip(arms, waits_s, strict=True)]
        if best == 1 or found.cost(best) >= min(others_s):
            return "local steps (docs/local.md) are not estimated to be faster"
        return (
            f"local steps with every={best} (docs/local.md) would take an estimated {found.cost(best) / now_s:.2f} of "
            "the time of int4 in each step to the same loss, and less if the updates of ranks are similar"
        )

    def ways(self, layout: Layout, world_size: int, can: Capabilities) -> Ways:
        found: dict[Candidate, list[Collective]] = {}
        for candidate in self.candidates:
            built = _countable(unforced(candidate.compressor, layout, can), layout, world_size)
            if built:
                # What others are compared with is what trains without this package, whatever curves say of another way.
                found[candidate] = built[:1] if candidate is DENSE else built
            for collective in collectives.undominated(built, layout, world_size) if candidate is not DENSE else ():
                found[replace(candidate, name=f"{candidate.name} by {collective.path}")] = [collective]
        if len(self.candidates) == 1:  # the algorithm is all there is to choose
            for path in collectives.variants(DENSE.compressor, layout, can)[1:]:
                found[Candidate(str(path), DENSE.compressor)] = [collectives.build(DENSE.compressor, path)]
        return found

    def unmeasured(self, layouts: Sequence[Layout], world_size: int, can: Capabilities) -> list[Decision]:
        arms = make_arms(self, self.request, layouts, world_size, can, None)
        if not arms:
            return []
        fewest = min(arms, key=lambda arm: arm.predicted) if world_size > 1 else arms[0]
        words = "there is no other way" if len(arms) == 1 else "fewest bytes"
        words = f"{fewest.way}: {words}" if world_size > 1 else "one rank exchanges nothing"
        return [replace(decision, reason=words) for decision in fewest.decisions]


@dataclass(frozen=True)
class Named(Choices):
    """The paths that a request leaves open. The first one is what arithmetic chooses; of a sparsifier that names no
    collective, to do without compression."""

    request: Request

    def ways(self, layout: Layout, world_size: int, can: Capabilities) -> Ways:
        request = self.request
        compressor, built = request.compressor, open_collectives(request, layout, can)
        found: dict[Candidate, list[Collective]] = {}
        if compressor.has_ratio and request.collective == "auto":
            dense = [
                p for p in collectives.variants(Cast(), layout, can) if collectives.verb_of(p.collective) == "allreduce"
            ]
            for path in dense:
                if request.algorithm in ("auto", path.algorithm):
                    found[Candidate(str(path), Cast())] = [collectives.build(Cast(), path)]
        elif not compressor.has_ratio:
            first = collectives.build(compressor, decide(request, layout, world_size, can).path)
            built = list(dict.fromkeys([first, *collectives.undominated(built, layout, world_size)]))
        own = _countable(built, layout, world_size)
        found |= {Candidate(str(collective.path), compressor): [collective] for collective in own}
        return found

    def unmeasured(self, layouts: Sequence[Layout], world_size: int, can: Capabilities) -> list[Decision]:
        return [decide(self.request, layout, world_size, can) for layout in layouts]


def leaves_open(request: Request) -> bool:
    """Whether a request leaves a path open that real steps may choose."""
    compressor = request.compressor
    if not compressor.compresses or collectives.by_name(request.collective):
        return False
    return request.collective == "auto" or (compressor.has_ratio and request.algorithm == "auto")


def _countable(built: list[Collective], layout: Layout, world_size: int) -> list[Collective]:
    """Leave out what gathers more bytes than transports can count, where there is another way."""
    fits = [
        collective
        for collective in built
        if all(
            stage.verb != "allgather" or stage.size * (stage.ranks or world_size) <= MAX_COUNT
            for stage in collective.stages(layout, world_size)
        )
    ]
    return fits or built


def of_each_size(layouts: Sequence[Layout]) -> Iterator[Layout]:
    """Yield a small, a middle and a large one of each dtype: others have the same calls."""
    for dtype in dict.fromkeys(layout.dtype for layout in layouts):
        own = sorted((layout for layout in layouts if layout.dtype == dtype), key=lambda layout: layout.numel)
        yield from dict.fromkeys((own[0], own[len(own) // 2], own[-1]))


def make_arms(
    choices: Choices,
    request: Request,
    layouts: Sequence[Layout],
    world_size: int,
    can: Capabilities,
    prices: Prices | None,
    kept: Arm | None = None,
) -> list[Arm]:
    """Return the arms: of each candidate one, in their order; at most MOST, those that take the least.

    A bucket that would take no less time by a candidate than by the first one travels as by that, as a small one does
    on a network with a long latency. Where all of them would, real steps have the last word: each travels by the
    candidate. What a coder makes shorter by more than it takes is coded; some candidates are arms only then.

    Args:
        kept: what was chosen for other buckets of the same gradients; its candidate is an arm for these, too.
    """
    ways = [choices.ways(layout, world_size, can) for layout in layouts]
    candidates = list(dict.fromkeys(candidate for found in ways for candidate in found))
    if not layouts:
        return []
    table = [
        {candidate: _priced(found[candidate], request, layout, prices or ByBytes(world_size)) for candidate in found}
        for found, layout in zip(ways, layouts, strict=True)
    ]
    arms: list[Arm] = []
    first = [next(iter(row.values())) for row in table]
    sent: list[list[object]] = []
    for candidate in candidates:
        own = [_of(candidate, row) or fallback for row, fallback in zip(table, first, strict=True)]
        cheaper = [min(pair, key=lambda each: each[0]) for pair in zip(first, own, strict=True)]
        chosen = own if cheaper == first else cheaper
        arm = Arm(candidate, tuple(decision for _, decision in chosen), sum(cost for cost, _ in chosen))
        as_sent = [_as_sent(decision, layout) for decision, layout in zip(arm.decisions, layouts, strict=True)]
        if as_sent not in sent:
            arms.append(arm)
            sent.append(as_sent)
    if choices.may_code and prices is not None:
        arms = [arms[0], *(_coded(arm, layouts, world_size, can, prices) for arm in arms[1:])]
    arms = _worth_their_loss(arms, kept)
    return [arms[0], *sorted(sorted(arms[1:], key=lambda arm: arm.predicted)[: MOST - 1], key=arms.index)]


def _coded(arm: Arm, layouts: Sequence[Layout], world_size: int, can: Capabilities, prices: Prices) -> Arm:
    """Return an arm whose buckets a coder makes shorter where that saves more time than it takes."""
    decisions, predicted = list(arm.decisions), arm.predicted
    for number, (decision, layout) in enumerate(zip(arm.decisions, layouts, strict=True)):
        shorter = decision.compressor.shorter
        if shorter is None or decision.device != "cpu" or not collectives.runs(shorter, decision.path, layout, can):
            continue
        coded = replace(decision, compressor=shorter)
        now_s, coded_s = (
            prices.by_path([each.build()], layout).get(decision.path, math.inf) for each in (decision, coded)
        )
        # Lengths go ahead by as many calls, unless receivers do not need them.
        lengths_s = 0.0 if can.takes_shorter else sum(prices.by_path([coded.build()], Layout.of(1)).values())
        decoded = world_size if decision.collective == "allgather" else 2  # what others send, and sums
        saved_s = now_s - coded_s - lengths_s - CODING_S * (1 + decoded) * layout.numel
        if saved_s > 0:  # not where nothing was measured
            decisions[number], predicted = coded, predicted - saved_s
    if tuple(decisions) == arm.decisions:
        return arm
    name, by, path = arm.name.partition(" by ")
    sent = arm.candidate.compressor.shorter or arm.candidate.compressor
    return Arm(replace(arm.candidate, name=f"{name} coded{by}{path}", compressor=sent), tuple(decisions), predicted)


def _worth_their_loss(arms: Sequence[Arm], kept: Arm | None) -> list[Arm]:
    """Leave out arms of candidates that are only chosen coded, where they are not, or do not clearly pay."""

    def cost(arm: Arm) -> float:
        return arm.predicted * arm.candidate.factor

    def pays(arm: Arm) -> bool:
        return not arm.candidate.compressor.shorter and cost(arm) <= CLEAR * best

    best = min(cost(arm) for arm in arms if not arm.candidate.if_coded)
    return [
        arm
        for arm in arms
        if not arm.candidate.if_coded or pays(arm) or (kept is not None and arm.called == kept.called)
    ]


def _of(candidate: Candidate, row: Mapping[Candidate, tuple[float, Decision]]) -> tuple[float, Decision] | None:
    """Return how a candidate carries a bucket: where it is not one of its ways, by another one of its compressor."""
    if candidate in row:
        return row[candidate]
    alike = [way for other, way in row.items() if other.compressor == candidate.compressor]
    return min(alike, key=lambda way: way[0]) if alike else None


def _as_sent(decision: Decision, layout: Layout) -> object:
    """Return what two decisions have in common that send the same: bf16 of an fp16 gradient is that gradient."""
    compressor = decision.compressor
    return decision.path, compressor if compressor.compresses else compressor.wire(layout)


def _priced(
    found: Sequence[Collective], request: Request, layout: Layout, prices: Prices | ByBytes
) -> tuple[float, Decision]:
    """Return what the cheapest of some ways costs, and its decision."""
    cost, collective = cheapest(found, layout, prices)
    return cost, Decision(collective.compressor, collective.path, compression_device(request, layout.device_type))
