"""Accordion: much is sent in critical regimes of a training, little in the rest.

Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", Algorithm 1.
"""

from __future__ import annotations

import json
import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.checks import check_flag, check_number, check_whole
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import UsageError
from hvd_compress.events.recorder import choice
from hvd_compress.feedback.states import RESULT_SUM
from hvd_compress.papers.accordion.critical import change, check_schedule, has_decayed
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.policies.resumed import refused, said_by
from hvd_compress.policies.telling import TellingPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.services.base import SeenStep, Service, Watched
from hvd_compress.settings import Settings

log = logging.getLogger("hvd_compress")

LONG = 10_000
"""Steps that are more than most epochs."""


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
    allocates_sum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_schedule(self.eta, self.every)
        if self.epoch_steps is not None:
            check_whole("epoch_steps", self.epoch_steps, 1)
        check_flag("per_parameter", self.per_parameter)

    @property
    def needs_optimizer(self) -> str:
        if not self.per_parameter:
            return ""
        return "per_parameter=True cuts buckets, and DDP's are its own: leave it out, with a small bucket_cap_mb of DDP"

    def make(self, request: Request, settings: Settings) -> AccordionPolicy:
        return AccordionPolicy(request, self)


class Level(Decision):
    """One of two, for now."""

    @property
    def plan_lacks(self) -> str:
        return "the plan has the level of each bucket now, and switches none: accordion() itself does"


class AccordionPolicy(TellingPolicy):
    """Two levels, of which each bucket has one until the next comparison.

    In epochs 0, every, 2 every, ... the results of steps are summed. At the end of such an epoch ranks agree on the
    norms of these sums: a bucket whose norm has changed by `eta` since the one `every` epochs ago is critical. All are
    until there are two, and after a decay of a learning rate until the next comparison.
    """

    def __init__(self, request: Request, settings: Accordion) -> None:
        super().__init__()
        plain = replace(request, policy=None)
        self._levels = {True: FixedPolicy(plain), False: FixedPolicy(settings.high)}  # by whether it is critical
        self._settings = settings
        self.services = (_Epochs(self),)
        self._layouts: Sequence[Layout] = ()
        self._decisions: dict[bool, Sequence[Decision]] = {}
        self._epoch = self._steps = 0
        self._norms: dict[str, float] = {}  # by parameter, of the epoch that is compared with
        self._calm: dict[str, float] = {}  # parameters that are not critical, and by how much their norm has changed
        self._rates: list[float] = []  # of rank 0, the same on all ranks
        self._own_rates: list[float] = []
        self._why = "the first epochs"
        self._changed = False  # since decide()
        self._tells_without_epochs = self._tells_without_rates = False  # on rank 0, once

    @property
    def tells_of(self) -> range:  # type: ignore[override]
        return range(len(self._layouts))

    @property
    def adds_results(self) -> bool:
        """Whether the results of the step under way join those before."""
        return self._epoch % self._settings.every == 0

    @property
    def counts_epochs(self) -> bool:
        """Whether it says itself when an epoch is over, and not the program."""
        return self._settings.epoch_steps is not None

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        self._tells_without_rates = engine.rank == 0
        self._tells_without_epochs = engine.rank == 0 and not self.counts_epochs
        for policy in self._levels.values():
            policy.measuring_s = self.measuring_s
            policy.prepare(engine, parameters)

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        return [Part((name,)) for name in names] if self._settings.per_parameter else ()

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._layouts, self._changed = buckets, False
        self._decisions = {level: policy.setup(step, buckets, launch) for level, policy in self._levels.items()}
        decisions = self._current()
        for number, decision in enumerate(decisions):
            self._history.add(choice(step, number, decision))
        return decisions

    def decide(self, step: int) -> Mapping[int, Decision]:
        changed, self._changed = self._changed, False
        return dict(enumerate(self._current())) if changed else {}

    def _current(self) -> list[Decision]:
        return [self._decision(number, layout) for number, layout in enumerate(self._layouts)]

    def _decision(self, number: int, layout: Layout) -> Decision:
        critical = self._is_critical(layout)
        decision = self._decisions[critical][number]
        if layout.dtype == torch.float64:
            return decision
        if critical:
            words = f"critical: {self._why}"
        else:
            most = max(self._calm[name] for name in layout.names)
            words = f"not critical: the norm of the summed gradient has changed by {most:.0%}"
        reason = f"{words}; {decision.reason}"
        return Level(decision.compressor, decision.path, decision.device, reason, decision.is_trial)

    def _is_critical(self, layout: Layout) -> bool:
        return not all(name in self._calm for name in layout.names)

    def count_step(self) -> bool:
        """A step is over. Return whether an epoch was over before it: rates are known then."""
        over = self._settings.epoch_steps is not None and self._steps >= self._settings.epoch_steps
        self._steps += 1
        if self._steps == LONG:
            self._tell_without_epochs()
        return over

    def end_epoch(self, step: int, session: Watched) -> None:
        """An epoch is over, before step `step`: ranks agree on norms. Collective."""
        if self._steps == 0 and not self.counts_epochs:
            raise UsageError(f"step {step}: no step was taken since the last epoch ended: end_epoch() was called twice")
        learning_rates = session.learning_rates()
        if not learning_rates and self._tells_without_rates:
            self._tells_without_rates = False
            log.warning(
                "hvd_compress: accordion() sees no learning rates, so that a decay makes nothing critical: call "
                "hc.of(model).follow_learning_rate(optimizer) on every rank"
            )
        decayed, sums = has_decayed(self._own_rates, learning_rates), self._sums(session)
        norms = [float(torch.linalg.vector_norm(each).double()) / session.unit for each in sums.values()]
        mine = {"decayed": decayed, "rates": list(learning_rates), "norms": norms}
        label = f"step {step}, comparing norms of epoch {self._epoch}"
        ranks = session.launch(lambda engine: _told(engine, mine), label)()
        means = map(fmean, zip(*(rank["norms"] for rank in ranks), strict=True))
        before = [self._is_critical(layout) for layout in self._layouts]
        if self.adds_results:
            self._compare(dict(zip(sums, means, strict=True)))
            for each in sums.values():
                each.zero_()
        if any(rank["decayed"] for rank in ranks):
            self._calm, self._why = {}, "the learning rate has decayed"
        self._changed = True
        self._own_rates, self._rates, self._epoch = list(learning_rates), ranks[0]["rates"], self._epoch + 1
        self._steps = 1 if self.counts_epochs else 0  # the first one of the new epoch has been counted
        for number, layout in enumerate(self._layouts):
            if self._is_critical(layout) != before[number]:
                self._history.add(choice(step - 1, number, self._decision(number, layout)))
        for state in session.bucket_states:
            state.keep(RESULT_SUM)

    def _sums(self, session: Watched) -> dict[str, torch.Tensor]:
        """Return the sums by parameter, where this is an epoch that is compared; the same names on all ranks."""
        if not self.adds_results:
            return {}
        kept = (item for state in session.bucket_states for item in state.current.items())
        return {name: sum_ for (kind, name), sum_ in kept if kind == RESULT_SUM}

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

    def close(self) -> None:
        """Say so where no epoch has ended."""
        if 1 < self._steps < LONG:
            self._tell_without_epochs()

    def _tell_without_epochs(self) -> None:
        if self._epoch == 0 and self._tells_without_epochs:
            self._tells_without_epochs = False
            log.warning(
                "hvd_compress: accordion() was told of no end of an epoch in %d steps, so all of them were sent by "
                "`low`: call hvd.of(optimizer).end_epoch(), or hc.of(model).end_epoch(), after each epoch, or pass "
                "epoch_steps",
                self._steps,
            )

    def chosen(self) -> str:
        told = {"epoch": self._epoch, "steps": self._steps, "rates": self._rates, "why": self._why}
        return json.dumps({"policy": "accordion", **told, "norms": self._norms, "calm": self._calm})

    def go_on(self, chosen: str) -> bool:
        with refused():
            said = said_by("accordion", chosen)
            if said is None:
                return False
            self._epoch, self._steps = (check_whole(name, said[name], 0) for name in ("epoch", "steps"))
            self._rates = self._own_rates = [float(rate) for rate in said["rates"]]
            self._norms, self._calm = _by_name(said["norms"]), _by_name(said["calm"])
            self._why = str(said["why"])
        return True


class _Epochs(Service):
    """Sums the results of steps, and ends epochs."""

    def __init__(self, policy: AccordionPolicy) -> None:
        self._policy: AccordionPolicy = weakref.proxy(policy)  # which has this service
        self._session: Watched

    def opened(self, session: Watched) -> None:
        self._session = session

    def exchanged(self, seen: SeenStep) -> None:
        if self._policy.count_step():
            self._policy.end_epoch(seen.step + 1, self._session)
        if seen.finite and self._policy.adds_results:
            self._session.add_results()

    def end_epoch(self, step: int) -> None:
        if not self._policy.counts_epochs:
            self._policy.end_epoch(step, self._session)

    def close(self) -> None:
        self._policy.close()


def _told(engine: Engine, mine: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what all ranks tell. Collective."""
    with engine.aside():
        return engine.allgather_json(mine)


def _norm(norms: Mapping[str, float], names: Sequence[str]) -> float:
    """Return the norm of a bucket; NaN where there is none of a parameter."""
    return math.sqrt(sum(norms.get(name, math.nan) ** 2 for name in names))


def _by_name(value: Mapping[str, float]) -> dict[str, float]:
    return {str(name): float(check_number(f"norm of {name}", number, 0)) for name, number in value.items()}
