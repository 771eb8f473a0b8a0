"""What every policy promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event, History
from hvd_compress.feedback.states import BucketState
from hvd_compress.policies.ccr import Ccr
from hvd_compress.request.decision import Decision
from hvd_compress.schemes import Probe, ProbeReport
from hvd_compress.schemes.phases import PhaseSpans


@dataclass(frozen=True)
class BucketMetrics:
    """What this rank measured of one bucket's exchange in the step that is over.

    Attributes:
        spans: when it was in which phase.
        report: the answer to the policy's probe.
        state: what the bucket remembers, with this step.
    """

    spans: PhaseSpans
    report: ProbeReport
    state: BucketState


@dataclass(frozen=True)
class StepMoments:
    """When this rank was where in a step, in seconds of time.perf_counter().

    Attributes:
        before_s: the step before was over.
        begun_s: the first gradient was there.
        waiting_s: the front end had nothing to do but to wait.
        ended_s: the step was over.
        held_back: whether exchanges began when the backward pass was over, to be profiled: it says nothing of others.
    """

    before_s: float
    begun_s: float
    waiting_s: float
    ended_s: float
    held_back: bool = False

    @property
    def waited_s(self) -> float:
        """What no backward pass has hidden."""
        return self.ended_s - self.waiting_s

    @property
    def exchanging_s(self) -> float:
        """From the first gradient to the end: the backward pass beside exchanges, and the wait."""
        return self.ended_s - self.begun_s


class Rollouts(Protocol):
    """Training steps that a policy wants to see and to have taken back, now. The same on all ranks.

    Attributes:
        how: what a program is to do for it, where it does nothing.
    """

    how: str

    def roll_out(self, session: Any, optimizer: Any, step: Any, model: Any, data: Any, steps: Any) -> None:
        """Do it, by what a program has passed to `rollout()` of an optimizer, over its session."""


class DecisionPolicy(ABC):
    """Answers: which decision, for each bucket and step? The same on every rank: local figures decide nothing.

    Called in this order: go_on(), prepare(), parts(), setup(); then for each step
    decide() and probes(), launched() when its last bucket was handed over, observe() when it is over. setup() comes
    again where buckets are cut anew. What comes before parts() runs in the engine's thread, the rest in the one that
    trains.

    Attributes:
        measuring_s: how long prepare() may measure collectives, in seconds, about; None: nothing, and what a request
            leaves open goes by arithmetic.
        tells_of: numbers of the buckets whose events it tells by itself (`watch`); the session tells of the others.
        history: what was decided when, and why; None where nothing is chosen.
        settled: whether nothing is tried.
        rollouts: what it wants of steps that are taken back; None where it wants none now.
        wants_ccr: whether the coming steps are to profile the communication-to-computation ratio, for take_ccr().
        profiles_ccr: whether it wants a ratio at any time.
        ccr_obstacle: why there can be none, in words, on all ranks alike; the session says so before prepare().
        adds_results: whether the results of the step under way join those before (`PolicySettings.allocates_sum`).
        plan_lacks: what a plan of what is in use now would not do, in words; nothing where it does all.
        counts_epochs: whether it says itself when an epoch is over, and not the program.
        cuttable: whether gradients may be cut into other buckets once nothing is tried.
    """

    measuring_s: float | None = None
    tells_of: Collection[int] = ()
    rollouts: Rollouts | None = None
    cuttable: bool = False
    wants_ccr: bool = False
    profiles_ccr: bool = False
    ccr_obstacle: str = ""
    adds_results: bool = False
    counts_epochs: bool = False
    plan_lacks: str = ""
    rank: int
    world_size: int
    capabilities: Capabilities

    @property
    def history(self) -> History | None:
        return None

    @property
    def settled(self) -> bool:
        return True

    def watch(self, watcher: Callable[[Event], None]) -> None:  # noqa: B027 (most policies have no events)
        """Tell `watcher` of every event from now on; before setup()."""

    def chosen(self) -> str:
        """Return what was chosen while training, as text for a checkpoint; nothing where something is still tried."""
        return ""

    def go_on(self, chosen: str) -> bool:
        """Go on with what another process of the job has chosen; before prepare(). The same on all ranks.

        Return whether a policy of this kind has chosen it; else it is of no use here. Raises ConfigError for what
        chosen() has not returned, on all ranks alike.
        """
        return False

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        """Ranks have shaken hands: look at the engine, and perhaps measure it. Collective, in the engine's thread.

        Args:
            parameters: the layout of each parameter by itself; sparse where its gradient was sparse on some rank.

        Raises:
            ConfigError, UnsupportedError: what is wanted cannot be done; on every rank alike.
        """
        self.rank, self.world_size, self.capabilities = engine.rank, engine.world_size, engine.capabilities

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        """Return which of these parameters must not share a bucket with others; those that are left may."""
        return ()

    @abstractmethod
    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        """Return how each bucket travels in step `step`, the coming one or the one under way."""

    def decide(self, step: int) -> Mapping[int, Decision]:
        """Return the decisions that change with the coming step, by number of the bucket."""
        return {}

    def probes(self, step: int) -> Mapping[int, Probe]:
        """Return what is wanted of the exchanges of the coming step; nothing of buckets that are left out."""
        return {}

    def dropped(self, step: int) -> Collection[int]:
        """Return the buckets that need no more, from the coming step on, what decisions before this one remember."""
        return ()

    def launched(self, step: int) -> None:  # noqa: B027 (most policies ask nothing)
        """All exchanges of a step are launched: a collective may be launched behind them, and awaited later."""

    def observe(self, step: int, metrics: Sequence[BucketMetrics], moments: StepMoments) -> None:  # noqa: B027
        """Take what a step took, by number of the bucket, and in all."""

    def take_ccr(self, step: int, ccr: Ccr) -> None:  # noqa: B027
        """Take the ratio that was profiled, behind step `step`."""

    def count_step(self) -> bool:
        """A step is over. Return whether an epoch was over before it (`counts_epochs`): rates are known then."""
        return False

    def end_epoch(  # noqa: B027
        self, step: int, learning_rates: Sequence[float], states: Sequence[BucketState], unit: float, launch: Launch
    ) -> None:
        """An epoch is over. Ranks may agree on something, at once. Collective.

        Args:
            step: the coming one.
            learning_rates: of the coming epoch, as far as they are known here.
            states: what buckets remember, by number.
            unit: what gradients were multiplied by, as of mixed precision.
        """

    def resume(self) -> None:  # noqa: B027
        """What passed since the last step belongs to no step."""

    def close(self) -> None:  # noqa: B027
        """Let what is written be complete."""
