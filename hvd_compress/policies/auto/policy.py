"""The policy that chooses by real steps: of Compression.auto(), and of every request that leaves its path open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, get_args

import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import History
from hvd_compress.events.recorder import choice
from hvd_compress.policies.auto.arms import Arm, Choices, Family, make_arms, of_each_size
from hvd_compress.policies.auto.chooser import Chooser
from hvd_compress.policies.auto.quality import Candidate, Kind, Quality, candidates
from hvd_compress.policies.auto.search import MARGIN
from hvd_compress.policies.fixed import decide
from hvd_compress.policies.prices import Prices, measure
from hvd_compress.policies.resumed import Resumed, decided, loaded, saved
from hvd_compress.policies.telling import TellingPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request, compression_device
from hvd_compress.services.agreement import Agreed
from hvd_compress.services.base import BucketMetrics
from hvd_compress.services.watch import Watch
from hvd_compress.settings import Settings

TRIED = "tried, to be compared within 20 steps"


@dataclass(frozen=True)
class Auto(PolicySettings):
    """What Compression.auto() was told, and by a front end that has it the kind of optimizer."""

    quality: Quality = "near"
    factors: tuple[tuple[str, float], ...] | None = None
    kind: Kind | None = None
    weighs_local_steps: bool = field(default=True, repr=False)  # with quality="any"; not among local steps
    takes: ClassVar[tuple[str, ...]] = ("engine", "device")
    takes_shards: ClassVar[bool] = True

    def beside(self, kind: str) -> Auto:
        assert kind in get_args(Kind)
        return replace(self, kind=kind)  # type: ignore[arg-type]

    def in_rounds(self) -> Auto:
        return replace(self, weighs_local_steps=False)

    def make(self, request: Request, settings: Settings) -> AutoPolicy:
        factors = None if self.factors is None else dict(self.factors)
        weighs = self.weighs_local_steps and self.quality == "any"
        return AutoPolicy(request, Family(request, candidates(self.quality, self.kind, factors), weighs))


OTHER_BUCKETS = "; chosen for other buckets of these gradients"
"""Behind the reason of a choice, however often gradients were cut anew since."""


class AutoPolicy(TellingPolicy):
    """Chooses one of several arms by real steps. Where nothing may be measured, the one with the fewest bytes."""

    cuttable = True

    def __init__(self, request: Request, choices: Choices) -> None:
        super().__init__()
        self._request, self._choices = request, choices
        self._prices: Prices | None = None
        self._layouts: Sequence[Layout] = ()
        self._parameters: Sequence[Layout] = ()
        self._arms: list[Arm] = []
        self._chooser: Chooser | None = None  # where there is something to choose
        self._fixed: Sequence[Decision] = ()  # where there is nothing
        self._arm = 0  # of the step under way
        self._resumed: Resumed | None = None
        self._skipped = False  # whether nothing was measured, as there is nothing to choose
        self._told = False  # whether the choice was
        self._reason_told = ""
        self._kept = ""  # the reason of an arm that was chosen for other buckets
        self._watch = Watch(self, self._history)
        self.services = (self._watch,)

    @property
    def history(self) -> History | None:
        return self._history if self._chooser is not None else None

    @property
    def settled(self) -> bool:
        return self._chooser is None or self._chooser.settled

    @property
    def tells_of(self) -> range:  # type: ignore[override]
        return range(len(self._layouts) if self._chooser is not None else 0)

    def chosen(self) -> str:
        if self._chooser is None or not self._told:
            return ""
        arm, level_s = self._arms[self._arm], self._watch.alarm.level_s
        if math.isnan(level_s):
            return ""
        return saved(arm.name, arm.decisions, _compressible(self._layouts), self.world_size, level_s)

    def go_on(self, chosen: str) -> bool:
        self._resumed = loaded(chosen)
        return self._resumed is not None

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        if self._request.algorithm != "auto":
            assert self._request.verb is not None
            engine.require(self._request.verb, self._request.algorithm)
        self._choices.unmeasured(_compressible(parameters), self.world_size, self.capabilities)  # can all be sent?
        self._parameters = [each for each in _compressible(parameters) if not each.sparse]
        self._skipped = self._resumed is not None
        if not self._skipped:
            self._measure(engine)

    def _measure(self, engine: Engine) -> None:
        """Collective, in the engine's thread."""
        if self.measuring_s is not None:
            layouts = of_each_size(self._parameters)
            ways = ((self._choices.ways(each, self.world_size, self.capabilities).values(), each) for each in layouts)
            self._prices = measure(engine, ways, self.measuring_s)

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._watch.begin(launch)
        self._watch.alarm.forget()
        self._layouts, self._kept = buckets, ""
        kept = (self._arms[self._arm], self._reason_told) if self._told and self.settled else None
        before = kept[0] if kept else None
        arms, self._arm, self._chooser = self._go_on(), 0, None
        if not arms and self._skipped:
            launch(self._measure, f"step {step}, measuring the network", self.measuring_s or 0.0)()
            self._skipped = False
        self._arms = arms or self._made(before)
        if self.measuring_s is not None and self._is_open:
            self._chooser = Chooser(*self._weights(), self._watch.alarm)
            self._arm = self._chooser.first
            if self._resumed is not None:
                self._watch.alarm.expect(self._resumed.exchanging_s, found=2)  # with which two windows are compared
            elif kept is not None:
                self._keep(self._chooser, *kept)
        else:
            self._fixed = self._choices.unmeasured(_compressible(buckets), self.world_size, self.capabilities)
        self._told = False
        return self._decisions()

    @property
    def _is_open(self) -> bool:
        """Whether there is something to choose."""
        return len(self._arms) > 1 or self._resumed is not None

    def _keep(self, chooser: Chooser, before: Arm, reason: str) -> None:
        """Gradients are cut anew, and an arm was chosen: all buckets go on with it, if there is such an arm."""
        same = [number for number, arm in enumerate(self._arms) if (arm.name, arm.way) == (before.name, before.way)]
        if not same and self._choices.may_code:  # by another path
            alike = [number for number, arm in enumerate(self._arms) if arm.called == before.called]
            same = sorted(alike, key=lambda number: self._arms[number].predicted)
        if same:
            chooser.keep(same[0])
            self._arm, self._kept = same[0], reason.removesuffix(OTHER_BUCKETS) + OTHER_BUCKETS

    def _go_on(self) -> list[Arm]:
        """Return what another process has chosen; nothing where buckets, request or engine are others."""
        if self._resumed is None or self.measuring_s is None:
            return []
        own = _compressible(self._layouts)
        decisions = decided(self._resumed.plan, own, self.world_size)
        if not decisions or not all(map(self._may_choose, own, decisions)):
            self._resumed = None
            return []
        here = [
            replace(d, device=compression_device(self._request, of.device_type))
            for d, of in zip(decisions, own, strict=True)
        ]
        return [Arm(Candidate(self._resumed.name, here[0].compressor), tuple(here), 0.0)]

    def _may_choose(self, layout: Layout, decision: Decision) -> bool:
        ways = self._choices.ways(layout, self.world_size, self.capabilities)
        sent = decision.compressor, decision.path
        known = [(each.compressor, each.path) for found in ways.values() for each in found]
        if self._choices.may_code and compression_device(self._request, layout.device_type) == "cpu":
            known += [
                (compressor.shorter, path)
                for compressor, path in known
                if compressor.shorter and collectives.runs(compressor.shorter, path, layout, self.capabilities)
            ]
        return sent in known

    def _made(self, kept: Arm | None = None) -> list[Arm]:
        own = _compressible(self._layouts)
        return make_arms(self._choices, self._request, own, self.world_size, self.capabilities, self._prices, kept)

    def _weights(self) -> tuple[list[float], list[float]]:
        return [arm.candidate.factor for arm in self._arms], [arm.predicted for arm in self._arms]

    def _decisions(self) -> list[Decision]:
        """Return how buckets travel with the arm of the coming step."""
        if self._chooser is None:
            own = iter(self._fixed)
        else:
            reason, is_trial = (self._reason(self._chooser), False) if self.settled else (TRIED, True)
            own = iter([replace(each, reason=reason, is_trial=is_trial) for each in self._arms[self._arm].decisions])
        plain = [layout.dtype == torch.float64 for layout in self._layouts]
        return [
            decide(self._request, layout, self.world_size, self.capabilities) if is_plain else next(own)
            for layout, is_plain in zip(self._layouts, plain, strict=True)
        ]

    def _reason(self, chooser: Chooser) -> str:
        arms = self._arms
        if self._kept:
            return self._kept
        if self._resumed is not None:
            return f"{arms[0].way}, as in the checkpoint"
        if len(arms) == 1:
            return f"{arms[0].way}: there is no other way"
        others = [arm for arm in range(len(arms)) if arm != self._arm and not math.isnan(chooser.not_hidden_s(arm))]
        waits = [f"{arms[arm].name} {1e3 * chooser.not_hidden_s(arm):.3g} ms" for arm in reversed(others)]
        if 0 not in (*others, self._arm):
            waits.append(f"{arms[0].name} {1e3 * arms[0].predicted:.3g} ms by measured curves")
        if not waits:  # the first arm alone was tried
            nearest = min(arms[1:], key=lambda arm: arm.predicted)
            waits.append(f"{nearest.name} {1e3 * nearest.predicted:.3g} ms by measured curves")
        own_s = chooser.not_hidden_s(self._arm)
        shorter = [arms[arm] for arm in reversed(others) if chooser.not_hidden_s(arm) < own_s]
        less = ", ".join(arm.name for arm in shorter)
        if any(arm.candidate.factor > arms[self._arm].candidate.factor for arm in shorter):
            less += ", the steps that it needs more included"
        found = [
            f"{arms[self._arm].way}, {1e3 * own_s:.3g} ms a step not hidden",
            ", ".join(waits),
            f"less than {MARGIN:.0%} of a step: nothing that sends less could save more" if chooser.hidden else "",
            f"less than {MARGIN:.0%} of a step, or nothing for certain, is saved by {less}" if less else "",
            self._choices.loss(arms[self._arm].candidate) if self._arm else "",
            self._choices.hint(arms, chooser.search.before_s, self._waits(chooser), self.world_size),
        ]
        return "; ".join(filter(None, found))

    def _waits(self, chooser: Chooser) -> list[float]:
        """What a step waits for exchanges, by arm: by curves, as if nothing were hidden, where it was not tried."""
        found = map(chooser.not_hidden_s, range(len(self._arms)))
        return [arm.predicted if math.isnan(each) else each for arm, each in zip(self._arms, found, strict=True)]

    @property
    def every(self) -> int:
        return self._chooser.every if self._chooser is not None else 0

    @property
    def is_awaited(self) -> bool:
        return not self.settled

    def note(self, metrics: Sequence[BucketMetrics]) -> int:
        """Return the arm by which the step travelled."""
        return self._arm

    def tell(self, notes: Sequence[int]) -> Sequence[float]:
        return ()

    def on_steps(self, step: int, agreed: Agreed, notes: Sequence[int]) -> float | None:
        assert self._chooser is not None
        return self._chooser.record(list(zip(notes, agreed.steps, strict=True)))

    def on_alarm(self, step: int) -> None:
        """Measure the network, and search again."""
        assert self._chooser is not None
        self._watch.measure(self._measure, step, self.measuring_s)
        self._resumed, self._kept = None, ""
        before = self._arms[self._arm].decisions
        self._arms = self._made()
        same = next((number for number, arm in enumerate(self._arms) if arm.decisions == before), None)
        self._chooser.again(*self._weights(), same)
        self._told = False

    def dropped(self, step: int) -> range:
        """All, once the choice stands: an exchange of it has sent what other arms had not."""
        return self.tells_of if self._told else range(0)

    def decide(self, step: int) -> Mapping[int, Decision]:
        chooser = self._chooser
        if chooser is None or self._told or self._watch.is_first:
            return {}
        self._arm = chooser.next()
        decisions = self._decisions()
        if chooser.settled:
            self._told, self._reason_told = True, self._reason(chooser)
            for number, decision in enumerate(decisions):
                self._history.add(choice(step - 1, number, decision))
        return dict(enumerate(decisions))


def _compressible(layouts: Sequence[Layout]) -> list[Layout]:
    return [layout for layout in layouts if layout.dtype != torch.float64]
