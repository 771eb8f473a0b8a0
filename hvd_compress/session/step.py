"""A step as a transaction over the buckets that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch

from hvd_compress import native
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, located, received
from hvd_compress.feedback.loss_scale import LossScale
from hvd_compress.feedback.schedule import FeedbackSchedule
from hvd_compress.feedback.states import BucketState
from hvd_compress.services.base import StepMoments
from hvd_compress.session.bucket import SessionBucket
from hvd_compress.session.buckets import Buckets
from hvd_compress.session.gathering import Gathering
from hvd_compress.session.pipeline import Pipeline
from hvd_compress.session.report import Exchanged


class Step:
    """The step under way, one after the other: what buckets remember changes when all of it succeeded, or not at all.

    Attributes:
        begun_s: when it began, by time.perf_counter(); None between two steps.
        returned_s: when the one before was over.
        results: those that lie in no bucket, of the last step, by number.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        buckets: Buckets,
        loss_scale: LossScale,
        feedback: FeedbackSchedule,
        average: bool,
        predivide_factor: float,
    ) -> None:
        """`average` and `predivide_factor`: as Session."""
        self._pipeline, self._all, self._loss_scale, self._feedback = pipeline, buckets, loss_scale, feedback
        self._average, self._predivide_factor = average, predivide_factor
        self.begun_s: float | None = None
        self.returned_s = perf_counter()
        self.results: dict[int, torch.Tensor] = {}
        self._given: tuple[int, ...] | None = None  # numbers of the buckets; all, if none were named
        self._committed: list[tuple[SessionBucket, BucketState]] = []

    @property
    def buckets(self) -> Sequence[SessionBucket]:
        """Those that it exchanges."""
        return self._all.named(self._given)

    @property
    def is_of_all(self) -> bool:
        """Whether it exchanges all buckets that there are."""
        return self._given is None or len(self._given) == len(self._all.every)

    def begin(self, numbers: Sequence[int] | None) -> None:
        """Begin with the buckets of these numbers, all for None, unless it has begun."""
        if self.begun_s is None:
            self.begun_s = perf_counter()
            if numbers is not None:
                self._given = tuple(sorted(numbers))
                for bucket in self._all.every:
                    if bucket.number not in self._given:  # what the last step has left of it stands
                        bucket.state.keep()
            self._loss_scale.update()

    def submit(self, number: int, gradient: torch.Tensor, step: int, engine: Engine) -> None:
        """Hand a bucket's gradient to the pipeline, as Session.submit()."""
        bucket = self._all.every[number]
        assert not bucket.launched, f"bucket {number} would leave twice in step {step}"
        place = number if self._given is None else self._given.index(number)
        bucket.launched = True
        factor = 1.0 if bucket.layout.sparse else self._predivide_factor
        if not bucket.layout.sparse:
            bucket.hold(gradient)
        if factor != 1.0:
            bucket.lane.gather()
            gradient.mul_(1.0 / factor)
        scale = factor / (engine.world_size if self._average else 1)
        hosts, coefficient = engine.capabilities.hosts, self._feedback.coefficient(step)
        exchange = bucket.start(gradient, step, scale, engine.rank, engine.world_size, hosts, coefficient)
        label = f"step {step}, bucket {number} ({bucket.layout.called})"
        self._pipeline.submit(place, exchange, label, bucket.lane, bucket.collective.in_groups)

    def moments(self, waited_from_s: float, held_back: bool) -> StepMoments:
        """Return when this rank was where in it, now that its exchanges are over.

        Args:
            waited_from_s: when the front end began to wait, by time.perf_counter().
            held_back: as `StepMoments.held_back`.
        """
        begun_s = min(self.begun_s or waited_from_s, waited_from_s)
        return StepMoments(self.returned_s, begun_s, waited_from_s, perf_counter(), held_back)

    def finish(self, step: int, engine: Engine, ranks: Gathering, gives_up: bool | None) -> Exchanged:
        """Wait for all buckets, and keep what they remember if all is finite. Collective.

        Args:
            gives_up: as Session.end_step(); None where the front end cannot give a step up.

        Raises CommunicationError, PayloadError: the exchange failed, or some ranks give the step up and others do not.
        """
        exchanged = self._pipeline.finish()
        with located(f"rank {engine.job_rank}, step {step}"), received():
            native.check_pending()  # what a GPU's kernels found in the payloads of other ranks
        if gives_up is not None and not exchanged.finite:
            exchanged = replace(exchanged, given_up=self._is_given_up(gives_up, step, engine, ranks))
        self.commit(exchanged)
        return exchanged

    def _is_given_up(self, mine: bool, step: int, engine: Engine, ranks: Gathering) -> bool:
        """Some gradients were not finite: return whether all ranks give the step up. Collective."""
        figures = ranks.of_all([mine], "who gives it up")
        giving = [str(rank) for rank, (gives_up,) in zip(engine.ranks, figures, strict=True) if gives_up]
        if 0 < len(giving) < len(figures):
            error = CommunicationError(
                f"step {step}: an error has ended the backward pass on {'ranks' if giving[1:] else 'rank'} "
                f"{', '.join(giving)}, and not on the others, whose gradients lack those: a step can be given up on "
                "all ranks alone"
            )
            self._pipeline.refuse(error)  # no collective is unfinished
            raise error
        return bool(giving)

    def commit(self, exchanged: Exchanged) -> None:
        """Keep what buckets remember, unless the step was not finite; roll_back() takes it back."""
        self.results, self._committed, self._all.committed_scale = {}, [], self._loss_scale.scale
        for bucket, outcome in zip(self.buckets, exchanged.outcomes, strict=True):
            if exchanged.finite:
                bucket.commit()
                self._committed.append((bucket, bucket.state))
            else:
                bucket.state.discard()
            bucket.report, result = outcome.report, outcome.result
            if result is not None:
                self.results[bucket.number] = result
                made = (result._indices(), result._values()) if bucket.layout.sparse else (result,)
                bucket.lane.wait_output(*made)

    def roll_back(self) -> None:
        """An error has ended it: what buckets remember is as it was before."""
        for bucket, state in self._committed:
            if bucket.state is state:
                state.revert()
        self._committed = []

    def release(self) -> None:
        """What its exchanges hold is not needed any more; and buckets decide what was put off."""
        for bucket in self.buckets:
            bucket.forget()
        for number, decision in self._all.later.items():
            self._all.every[number].decide(decision)
        self._all.later = {}

    def end(self) -> None:
        """It is over."""
        self.begun_s, self.returned_s, self._given, self._committed = None, perf_counter(), None, []
