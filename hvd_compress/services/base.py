"""What a service is: it watches the steps of a session, and takes the events that it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.collectives.probe import ProbeReport
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.feedback.states import BucketState


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


@dataclass(frozen=True)
class SeenStep:
    """A step whose exchanges are over and committed.

    Attributes:
        step: its number.
        metrics: of its buckets, in the order of their numbers.
        moments: when this rank was where.
        finite: whether all results were finite; what buckets remember changes in no other step.
        is_regular: whether all buckets travelled as was decided before the step; not where they were cut anew in it,
            where it was given up, and where it was of some buckets alone.
    """

    step: int
    metrics: Sequence[BucketMetrics]
    moments: StepMoments
    finite: bool
    is_regular: bool


class Watched(Protocol):
    """What a service may ask of the session that it watches.

    Attributes:
        learning_rates: gives those of the coming steps, where a front end knows the optimizer.
    """

    learning_rates: Callable[[], Sequence[float]]

    @property
    def launch(self) -> Launch:
        """Hands the engine's thread a collective, in step with all ranks."""

    @property
    def unit(self) -> float:
        """What gradients are multiplied by, as of mixed precision."""

    @property
    def layouts(self) -> Sequence[Layout]:
        """The buckets, by number."""

    @property
    def bucket_states(self) -> Sequence[BucketState]:
        """What buckets remember, by number."""

    @property
    def settled(self) -> bool:
        """Whether the policy tries nothing."""

    @property
    def results(self) -> Sequence[tuple[Layout, torch.Tensor]] | None:
        """The results of the step that is over, of buckets that lie in memory; None where ranks' are not the same."""

    def add_results(self) -> None:
        """Add the results of the step that is over to the sums that buckets keep (`PolicySettings.allocates_sum`)."""


class Service:
    """Watches the steps of a session. Each event comes to all services, in the order of `session/services.py`.

    What a service launches it launches on all ranks alike.

    Attributes:
        holds_back: whether buckets are to be handed over when the backward pass is over: an exchange at the same time
            would take the cores and the memory that are measured.
    """

    holds_back: bool = False

    def fingerprint(self) -> Mapping[str, str]:
        """Return what must be equal on all ranks, in words; before they meet."""
        return {}

    def met(self, engine: Engine) -> None:
        """Ranks have shaken hands, perhaps again. Collective, in the engine's thread.

        Raises UnsupportedError, ConfigError, on all ranks alike, where it cannot do what it is for.
        """

    def opened(self, session: Watched) -> None:
        """The policy is prepared, and the first exchange comes."""

    def launched(self, step: int) -> None:
        """All exchanges of a step are launched: a collective may be launched after them, and awaited later."""

    def exchanged(self, seen: SeenStep) -> None:
        """A step is over; how buckets travel in the next one is not decided yet. What it raises ends the step."""

    def failed(self) -> None:
        """A step has failed, and nothing is exchanged any more."""

    def ended(self) -> None:
        """A step counts: what fails here is logged, and raised by the next exchange."""

    def end_epoch(self, step: int) -> None:
        """The program says that an epoch is over. `step`: the coming one."""

    def close(self) -> None:
        """Nothing more comes."""


class Rollouts(Service, ABC):
    """Training steps that a policy wants to see and to have taken back. The same on all ranks.

    Attributes:
        how: what a program is to do for it, where it does nothing.
        wanted: whether it wants some now.
    """

    how: str

    @property
    @abstractmethod
    def wanted(self) -> bool: ...

    @abstractmethod
    def roll_out(self, session: Any, optimizer: Any, step: Any, model: Any, data: Any, steps: Any) -> None:
        """Do it, by what a program has passed to `rollout()` of an optimizer, over its session."""
