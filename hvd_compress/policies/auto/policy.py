"""The policy of Compression.auto(): ranks agree on what steps took, and buckets travel by the arm that is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event, History
from hvd_compress.events.recorder import choice
from hvd_compress.policies.auto.arms import Arm, make_arms, ways_of
from hvd_compress.policies.auto.chooser import Chooser, StepTimes
from hvd_compress.policies.auto.quality import OF, Quality
from hvd_compress.policies.base import BucketMetrics, DecisionPolicy, StepMoments
from hvd_compress.policies.fixed import decide
from hvd_compress.policies.prices import Prices, keys_of, measure
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings

TRIED = "tried, to be compared"


@dataclass(frozen=True)
class Auto:
    """What Compression.auto() was told."""

    quality: Quality = "near"

    def make(self, request: Request, settings: Settings) -> AutoPolicy:
        return AutoPolicy(request, self.quality)


class AutoPolicy(DecisionPolicy):
    """Chooses one of the arms of a quality by real steps. Where nothing may be measured, the one with the fewest bytes.

    Attributes:
        history: what was decided when, and why.
    """

    def __init__(self, request: Request, quality: Quality) -> None:
        self._request, self._candidates = request, OF[quality]
        self._prices: Prices | None = None
        self._layouts: Sequence[Layout] = ()
        self._parameters: Sequence[Layout] = ()
        self._arms: list[Arm] = []
        self._chooser: Chooser | None = None
        self._watchers: list[Callable[[Event], None]] = []
        self.history = History(watchers=self._watchers)
        self._arm = 0  # of the step under way
        self._steps: list[tuple[int, tuple[float, float, float]]] = []  # that ranks have not agreed on yet
        self._agreeing: Callable[[], list[list[float]]] | None = None
        self._since = 0  # the step behind whose exchanges they began to
        self._agreed_on: list[int] = []  # the arms of its steps
        self._launch: Launch
        self._told = False  # whether the choice was
        self._drops_at = -1
        self._is_first = True  # whether the step under way began before buckets were known

    @property
    def controller(self) -> AutoPolicy:
        return self

    @property
    def settled(self) -> bool:
        """Whether no arm is tried."""
        return self._chooser is None or self._chooser.settled

    @property
    def tells_of(self) -> range:  # type: ignore[override]
        return range(len(self._layouts))

    def watch(self, watcher: Callable[[Event], None]) -> None:
        self._watchers.append(watcher)
        self.history = History(watchers=self._watchers)

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        self._parameters = [each for each in parameters if not each.sparse and each.dtype != torch.float64]
        self._measure(engine)

    def _measure(self, engine: Engine) -> None:
        """Collective, in the engine's thread."""
        if self.measuring_s is not None:
            ways = ways_of(self._candidates, self._parameters, self.world_size, self.capabilities)
            self._prices = measure(engine, keys_of(ways, self.world_size), self.measuring_s)

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._take()  # what is under way is about other buckets
        self._layouts, self._launch, self._steps = buckets, launch, []
        self._arms = self._made()
        self._chooser = Chooser(*self._weights()) if self.measuring_s is not None else None
        self._arm = 0 if self._chooser is not None else self._unmeasured
        self._told, self._is_first = False, True
        return self._decisions()

    def _made(self) -> list[Arm]:
        layouts = [layout for layout in self._layouts if layout.dtype != torch.float64]
        return make_arms(self._request, self._candidates, layouts, self.world_size, self.capabilities, self._prices)

    def _weights(self) -> tuple[list[float], list[float]]:
        return [arm.candidate.factor for arm in self._arms], [arm.predicted for arm in self._arms]

    @property
    def _unmeasured(self) -> int:
        return min(range(len(self._arms)), key=lambda arm: self._arms[arm].predicted) if self.world_size > 1 else 0

    def _decisions(self) -> list[Decision]:
        """Return how buckets travel with the arm of the coming step."""
        own = iter(self._arms[self._arm].decisions)
        reason = self._reason() if self.settled else TRIED
        found = []
        for layout in self._layouts:
            if layout.dtype == torch.float64:
                found.append(decide(self._request, layout, self.world_size, self.capabilities))
            else:
                found.append(replace(next(own), reason=reason, is_trial=not self.settled))
        return found

    def _reason(self) -> str:
        chooser, arms = self._chooser, self._arms
        if chooser is None:
            return "one rank exchanges nothing" if self.world_size == 1 else f"{arms[self._arm].way}: fewest bytes"
        if len(arms) == 1:
            return f"{arms[0].way}: there is no other way"
        others = [arm for arm in range(len(arms)) if arm != self._arm and not math.isnan(chooser.waited_s(arm))]
        waits = [f"{arms[arm].candidate.name} {1e3 * chooser.waited_s(arm):.3g} ms" for arm in reversed(others)]
        own = f"{arms[self._arm].way}, {1e3 * chooser.waited_s(self._arm):.3g} ms a step not hidden"
        return "; ".join(filter(None, [own, ", ".join(waits), "as dense in loss (table)" if self._arm else ""]))

    def observe(self, step: int, metrics: Sequence[BucketMetrics], moments: StepMoments) -> None:
        chooser = self._chooser
        if chooser is None or self._is_first:
            self._is_first = False
            return
        if not chooser.settled or step > self._since:
            self._take()
        if chooser.changed:
            self._measure_again(step)
            return
        figures = moments.ended_s - moments.before_s, moments.exchanging_s, moments.waited_s
        self._steps.append((self._arm, figures))

    def launched(self, step: int) -> None:
        """Behind the last exchange ranks are in step. They compare the steps before this one."""
        chooser = self._chooser
        if chooser is None or self._agreeing is not None or len(self._arms) == 1:
            return
        if len(self._steps) >= chooser.every:
            self._agree(step)

    def _agree(self, step: int) -> None:
        self._since = step
        self._agreed_on = [arm for arm, _ in self._steps]
        mine = [figure for _, figures in self._steps for figure in figures]
        self._agreeing = self._launch(partial(_gathered, mine), f"step {step}, comparing times")
        self._steps = []

    def _take(self) -> None:
        if self._agreeing is None:
            return
        wait, self._agreeing = self._agreeing, None
        ranks = wait()
        columns = list(zip(*ranks, strict=True))
        times = [
            StepTimes(fmean(whole_s), min(exchanging_s), min(waited_s))
            for whole_s, exchanging_s, waited_s in zip(columns[::3], columns[1::3], columns[2::3], strict=True)
        ]
        assert self._chooser is not None
        self._chooser.record(list(zip(self._agreed_on, times, strict=True)))

    def _measure_again(self, step: int) -> None:
        """The network seems to be another one: measure it, and search again."""
        assert self._chooser is not None
        self.history.add(Event(step, "network", reason="steps take another time than those before"))
        self._launch(self._measure, f"after step {step}, measuring the network", self.measuring_s or 0.0)()
        self._arms, self._steps = self._made(), []
        self._chooser.again(*self._weights())
        self._told = False

    def dropped(self, step: int) -> range:
        """All, once an exchange of the choice has sent what other arms had not."""
        return self.tells_of if step == self._drops_at else range(0)

    def resume(self) -> None:
        self._is_first = False

    def decide(self, step: int) -> Mapping[int, Decision]:
        chooser = self._chooser
        if chooser is None or self._told or self._is_first:
            return {}
        self._arm = chooser.next()
        decisions = self._decisions()
        if chooser.settled:
            self._told, self._drops_at = True, step + 1
            for number, decision in enumerate(decisions):
                self.history.add(choice(step - 1, number, decision))
        return dict(enumerate(decisions))


def _gathered(mine: Sequence[float], engine: Engine) -> list[list[float]]:
    """Return the figures of all ranks, which bring as many. Collective."""
    with engine.aside():
        sent = torch.tensor(mine, dtype=torch.float64)
        return [part.tolist() for part in engine.control.allgather(sent, [len(mine)] * engine.world_size)]
