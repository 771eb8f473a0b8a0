"""Accordion: much is sent in critical regimes of a training, little in the rest.

Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", Algorithm 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError
from hvd_compress.events.history import Event, History
from hvd_compress.events.recorder import choice
from hvd_compress.feedback.states import RESULT_SUM, BucketState
from hvd_compress.policies.agreement import gathered
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.settings import Settings

FALL = 0.1
"""By which share a learning rate falls, from one epoch to the next, to count as decayed: less is a slow schedule, by
which all of a training would be critical."""


@dataclass(frozen=True)
class Accordion(PolicySettings):
    """What Compression.accordion() was told; the request is that of the critical regimes.

    Attributes:
        high: what is sent in the rest.
        eta: share by which a norm must change for a regime to be critical.
        every: epochs from one comparison to the next.
        epoch_steps: how many steps are an epoch; None where the program says when one ends.
        per_parameter: whether each parameter is judged, and travels, by itself; else buckets are.
    """

    high: Request
    eta: float = 0.5
    every: int = 10
    epoch_steps: int | None = None
    per_parameter: bool = False
    keeps_sum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_schedule(self.eta, self.every)
        if self.epoch_steps is not None:
            _check_whole("epoch_steps", self.epoch_steps)
        if not isinstance(self.per_parameter, bool):
            raise ConfigError(f"per_parameter = {self.per_parameter!r} must be True or False")

    def make(self, request: Request, settings: Settings) -> AccordionPolicy:
        return AccordionPolicy(request, self)


def check_schedule(eta: float, every: int) -> None:
    """Raise ConfigError where these are no share, or no number of epochs."""
    if isinstance(eta, bool) or not isinstance(eta, (int, float)) or not 0 < eta < math.inf:
        raise ConfigError(f"eta = {eta!r} must be a share by which norms change, above 0")
    _check_whole("every", every)


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {value!r} must be a whole number, 1 or more")


def change(before: float, now: float) -> float:
    """Return |before - now| / before, the left side of the paper's condition; infinite where it has no value."""
    if not math.isfinite(before) or not math.isfinite(now):
        return math.inf
    if before == 0:
        return 0.0 if now == 0 else math.inf
    return abs(before - now) / before


def has_fallen(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether any learning rate has decayed since the epoch before."""
    return len(before) == len(now) and any(new < (1 - FALL) * old for old, new in zip(before, now, strict=True))


class AccordionPolicy(DecisionPolicy):
    """Two levels, of which each bucket has one until the next comparison.

    In epochs 0, every, 2 every, ... the results of steps are summed. At the end of such an epoch ranks agree on the
    norms of these sums: a bucket whose norm has changed by `eta` since the one `every` epochs ago is critical. All are
    until there are two, and after a decay of a learning rate until the next comparison.
    """

    def __init__(self, request: Request, settings: Accordion) -> None:
        plain = replace(request, policy=None)
        self._levels = {True: FixedPolicy(plain), False: FixedPolicy(settings.high)}  # by whether it is critical
        self._settings = settings
        self._watchers: list[Callable[[Event], None]] = []
        self._history = History(watchers=self._watchers)
        self._layouts: Sequence[Layout] = ()
        self._decisions: dict[bool, Sequence[Decision]] = {}
        self._epoch = self._steps = 0
        self._norms: dict[str, float] = {}  # by parameter, of the epoch that is compared with
        self._calm: dict[str, float] = {}  # parameters that are not critical, and by how much their norm has changed
        self._rates: list[float] = []
        self._why = "the first epochs"

    @property
    def history(self) -> History | None:
        return self._history

    @property
    def tells_of(self) -> range:  # type: ignore[override]
        return range(len(self._layouts))

    @property
    def sums_results(self) -> bool:  # type: ignore[override]
        return self._epoch % self._settings.every == 0

    @property
    def counts_epochs(self) -> bool:  # type: ignore[override]
        return self._settings.epoch_steps is not None

    def watch(self, watcher: Callable[[Event], None]) -> None:
        self._watchers.append(watcher)

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        for policy in self._levels.values():
            policy.measuring_s = self.measuring_s
            policy.prepare(engine, parameters)

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        return [Part((name,)) for name in names] if self._settings.per_parameter else ()

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._layouts = buckets
        self._decisions = {level: policy.setup(step, buckets, launch) for level, policy in self._levels.items()}
        return self._chosen(step)

    def decide(self, step: int) -> Mapping[int, Decision]:
        return dict(enumerate(self._at()))

    def _at(self) -> list[Decision]:
        return [self._decision(number, layout) for number, layout in enumerate(self._layouts)]

    def _decision(self, number: int, layout: Layout) -> Decision:
        calm = all(name in self._calm for name in layout.names)
        decision = self._decisions[not calm][number]
        if layout.dtype == torch.float64:
            return decision
        return replace(decision, reason=f"{self._words(layout, calm)}; {decision.reason}")

    def _words(self, layout: Layout, calm: bool) -> str:
        if calm:
            most = max(self._calm[name] for name in layout.names)
            return f"not critical: the norm of the summed gradient has changed by {most:.0%}"
        return f"critical: {self._why}"

    def _chosen(self, step: int) -> list[Decision]:
        """Tell how buckets travel from step `step` on."""
        decisions = self._at()
        for number, decision in enumerate(decisions):
            self._history.add(choice(step, number, decision))
        return decisions

    def ends_epoch(self, step: int) -> bool:
        self._steps += 1
        return self._steps == self._settings.epoch_steps

    def end_epoch(
        self, step: int, rates: Sequence[float], states: Sequence[BucketState], unit: float, launch: Launch
    ) -> None:
        fallen, sums = has_fallen(self._rates, rates), self._sums(states)
        mine = [float(fallen), *(float(torch.linalg.vector_norm(each).double()) / unit for each in sums.values())]
        ranks = launch(partial(gathered, mine), f"step {step}, comparing norms of epoch {self._epoch}")()
        norms = dict(zip(sums, (fmean(each) for each in list(zip(*ranks, strict=True))[1:]), strict=True))
        before = {layout.names: self._level(layout) for layout in self._layouts}
        if self.sums_results:
            self._compare(norms)
            for each in sums.values():
                each.zero_()
        if any(rank[0] for rank in ranks):
            self._calm, self._why = {}, "the learning rate has decayed"
        self._rates, self._epoch, self._steps = list(rates), self._epoch + 1, 0
        for number, layout in enumerate(self._layouts):
            if self._level(layout) != before[layout.names]:
                self._history.add(choice(step - 1, number, self._decision(number, layout)))

    def _level(self, layout: Layout) -> bool:
        return all(name in self._calm for name in layout.names)

    def _sums(self, states: Sequence[BucketState]) -> dict[str, torch.Tensor]:
        """Return the sums by parameter, where this is an epoch that is compared; the same names on all ranks."""
        if not self.sums_results:
            return {}
        return {name: sum_ for state in states for (kind, name), sum_ in state.current.items() if kind == RESULT_SUM}

    def _compare(self, norms: Mapping[str, float]) -> None:
        """Find out who is critical, bucket by bucket."""
        self._calm = {}
        if self._norms:
            for layout in self._layouts:
                pair = (_norm(known, layout.names) for known in (self._norms, norms))
                changed = change(*pair)
                if changed < self._settings.eta:
                    self._calm.update(dict.fromkeys(layout.names, changed))
            self._why = f"the norm of the summed gradient has changed by {self._settings.eta:.0%} or more"
        self._norms = {name: norm for name, norm in norms.items() if math.isfinite(norm)}

    def chosen(self) -> str:
        told = {"epoch": self._epoch, "steps": self._steps, "rates": self._rates, "why": self._why}
        return json.dumps({"policy": "accordion", **told, "norms": self._norms, "calm": self._calm})

    def go_on(self, chosen: str) -> None:
        try:
            said = json.loads(chosen)
            if not isinstance(said, dict):
                raise ValueError("it is no object")
            if said.get("policy") != "accordion":
                return  # another policy has chosen
            self._epoch, self._steps = _whole(said["epoch"]), _whole(said["steps"])
            self._rates = [_number(rate) for rate in said["rates"]]
            self._norms, self._calm = _by_name(said["norms"]), _by_name(said["calm"])
            self._why = str(said["why"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"the choice in this state of a compression is not valid ({error}): load what state_dict() returned"
            ) from None


def _norm(norms: Mapping[str, float], names: Sequence[str]) -> float:
    """Return the norm of a bucket; NaN where there is none of a parameter."""
    return math.sqrt(sum(norms.get(name, math.nan) ** 2 for name in names))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(f"{value!r} is no norm and no rate")
    return float(value)


def _by_name(value: Mapping[str, object]) -> dict[str, float]:
    return {str(name): _number(number) for name, number in value.items()}
