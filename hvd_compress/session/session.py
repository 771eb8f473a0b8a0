"""The exchange session: a policy, a pipeline and what buckets remember, without parameters. Every front end has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.devices import Lanes
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ReplicaError, UsageError
from hvd_compress.feedback.loss_scale import LossScale
from hvd_compress.feedback.states import RESULT_SUM, States
from hvd_compress.policies import DecisionPolicy
from hvd_compress.request.request import Request
from hvd_compress.session.buckets import Buckets
from hvd_compress.session.gathering import Gathering
from hvd_compress.session.handshake import Agreement
from hvd_compress.session.opening import Loaded, Opening, Resuming, asked
from hvd_compress.session.pipeline import Pipeline
from hvd_compress.session.report import Exchanged, StepReport
from hvd_compress.session.reporting import Reporting
from hvd_compress.session.services import Services
from hvd_compress.session.steering import Steering
from hvd_compress.session.step import Step
from hvd_compress.settings import Settings


class Session:
    """Exchanges the buckets of one step after the other, over the ranks of an engine.

    A front end calls open() at the end of the first step, and set_buckets() there and whenever buckets are cut anew;
    in each step begin_step(), `buckets.mark_ready()` where it has put a gradient into a bucket, submit() for every
    bucket, in any order, and end_step(). It calls fail() for an error of its own in a step, and close() at the end. A
    step is a transaction: what buckets remember changes when all of it succeeded, or not at all.

    Attributes:
        parameters: what a plan of buckets needs to know of each, by name.
        engine: what moves the bytes, from open() on.
        buckets: what it exchanges; none before set_buckets().
        states: what buckets remember, by parameter name.
        loss_scale: the units of residuals in mixed precision.
        step: of the coming exchange; the same on all ranks from open() on.
        last_step: a report of the last exchange; None before the first.
        steering: how they travel, by the policy.
        services: what watches its steps.
        loaded: what a checkpoint has brought that was loaded before open().
        cuts_stand: whether no other cut of the gradients is being tried, which a checkpoint would keep for good.
        reporting: what it says of its steps.
        gathering: has ranks bring something between two steps.
        closed: whether it exchanges nothing any more.
        may_give_up: whether the front end can go on after a backward pass that an error has ended.
    """

    def __init__(
        self,
        parameters: Mapping[str, Slot],
        request: Request,
        settings: Settings,
        connect: Callable[[], Engine],
        *,
        average: bool = True,
        predivide_factor: float = 1.0,
        devices: Iterable[torch.device] = (),
        lanes: Lanes | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: by name, in an order that is the same on all ranks.
            request: what the user asked for.
            connect: creates the engine; called once, in the communication thread, by open().
            average: divide the sum over ranks by their number.
            predivide_factor: gradients are divided by it before the sum and multiplied by it after.
            devices: where gradients lie; threads of the exchange begin on the first GPU among them.
            lanes: gives buckets their lanes, and threads their device.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.
        """
        self.parameters = parameters
        self.request, self._settings, self._connect = request, settings, connect
        lanes = lanes or Lanes()
        self._pipeline = Pipeline(settings.timeout_s, arrivals, partial(lanes.set_device, tuple(devices)))
        self.engine: Engine
        self.states = States()
        self.loss_scale = LossScale(self.states)
        self.buckets = Buckets(self.states, self.loss_scale, lanes, request.allocates_sum)
        self._step = Step(self._pipeline, self.buckets, self.loss_scale, request.feedback, average, predivide_factor)
        self.reporting = Reporting(settings)
        self.steering = Steering(self.buckets, self._step, self._pipeline.begin, self.reporting)
        self.gathering = Gathering(self, self._pipeline.begin)
        self.step = 0
        self.last_step: StepReport | None = None
        self.services = Services()
        self.loaded, self.cuts_stand = Loaded(), True
        self.may_give_up = False
        self.closed = False

    @property
    def policy(self) -> DecisionPolicy | None:
        """What decides; None before open()."""
        return self.steering.policy

    @property
    def is_within_step(self) -> bool:
        """Whether a step has begun and is not over."""
        return self._step.begun_s is not None

    def open(
        self, order: Sequence[str], sparse: Sequence[str] = (), options: str = "", by_rows: bool = True
    ) -> Agreement:
        """Connect and shake hands. All ranks call it, at the end of the first step.

        Args:
            order: names in the order in which gradients became ready; that of rank 0 counts.
            sparse: names of those whose gradient was sparse here.
            options: of the front end, compared between ranks.
            by_rows: whether sparse gradients will travel by their rows.

        Raises:
            ConfigError, UnsupportedError: ranks differ, or the engine cannot do what was asked for; on all ranks alike.
        """
        opening = Opening(self.request, self._settings, self.parameters, order, sparse, options, by_rows)
        resuming = Resuming(self.step, self.loaded.cuts, self.loaded.choice)
        meet = partial(opening.meet, resuming=resuming, services=self.services)
        found = self._pipeline.connect(self._connect, meet, self._settings.calibration_s)
        self.engine, agreement = found.engine, found.agreement
        if not found.goes_on:
            self.states.forget_kind(RESULT_SUM)  # of an epoch that nobody goes on with
        self.step = agreement.step
        self.reporting.meet(found.policy, self.engine, self._step.returned_s)
        self.steering.take(found.policy, found.goes_on)
        self.services.opened(self.steering)
        if not agreement.resumes:
            self.loaded.cuts = ()
        self.reporting.opened(self.request, self.parameters, self.steering.learning_rates is not tuple)
        return agreement

    def asked(self) -> dict[str, str]:
        """Return what users ask for and ranks must have alike, each in words."""
        return asked(self.request, self._settings)

    def set_buckets(self, layouts: Sequence[Layout], devices: Mapping[str, torch.device]) -> None:
        """Exchange these buckets, and no others, from now on; buckets of sparse gradients come last.

        What is remembered follows its parameters. Buckets that are as before keep what they have, also in the middle of
        a step. The memory of others is free as soon as all of their parameters have new ones.

        Args:
            devices: where gradients lie, by the layouts' places.
        """
        assert self._step.is_of_all, "a step of some buckets is on its way"
        self.steering.set_buckets(self.step, layouts, devices, self.engine)
        if not self.engine.rank and self.engine.world_size > 1:
            self.loaded.tell_unused(self.buckets, self.steering.controller)

    def drop_step(self) -> None:
        """Nobody uses the result of the last exchange: remember what was remembered before it. Between two steps.

        Nothing is communicated, and all ranks call it alike. It reaches one exchange back: a second call, and one
        after another step has begun or a checkpoint was loaded, changes nothing. The sums of an epoch that has ended
        since stay.

        Raises UsageError within a step, when some of it is on its way.
        """
        if self.buckets.are_launched:
            raise UsageError(f"step {self.step} is on its way: drop it when it is over, before the next backward pass")
        self.buckets.take_back()

    def keep_step(self) -> None:
        """A step has failed here, and ended on another rank, which has what this one sent: remember what it left.

        Results are that rank's to give. A bucket that was not handed over here had nothing to send.
        """
        for number, bucket in enumerate(self.buckets.every):
            if self.buckets.is_launched(number):
                bucket.commit()
        self.step += 1

    def begin_step(self, buckets: Sequence[int] | None = None) -> None:
        """A step begins: before its first bucket is handed over. Later calls in the same step change nothing.

        It may last: a program may train on between the hand-over of its buckets and end_step().

        Args:
            buckets: the numbers of those that it exchanges, the same on all ranks; all, if not given.
        """
        self._step.begin(buckets)

    def submit(self, number: int, gradient: torch.Tensor) -> None:
        """Hand over a bucket's gradient, in any order of numbers; each once a step. The result will lie there.

        Args:
            gradient: (numel,), in the layout's dtype, where its place says; or a sparse one, of a sparse layout.
        """
        if not self.failed:  # else end_step() will say why
            self._step.submit(number, gradient, self.step, self.engine)

    def result(self, number: int) -> torch.Tensor:
        """Return a result that lies in no bucket, as of a sparse layout; once, between end_step() and the next step."""
        return self._step.results.pop(number)

    def end_step(self, waited_from_s: float | None = None, gives_up: bool = False) -> StepReport:
        """Wait for all buckets; what they remember is kept if all is finite. The next step travels as the policy says.

        Args:
            waited_from_s: when the front end began to wait, by time.perf_counter(); now, if not given.
            gives_up: whether this rank lacks gradients, and has handed over some that are not finite.

        Raises:
            CommunicationError, PayloadError: the exchange failed. What is remembered is as it was before the step.
            CommunicationError: some ranks give the step up and others do not; on all ranks.
            ReplicaError: parameters or results differ between ranks; on all ranks.
        """
        start_s = perf_counter() if waited_from_s is None else waited_from_s
        try:
            self.services.launched(self.step)
            over = self._step.finish(self.step, self.engine, self.gathering, gives_up if self.may_give_up else None)
            self._show(over, start_s)
            travelled = self.steering.settle(self.step)
        except BaseException as error:  # an interrupt, too: a step that was taken by halves must not go on
            if isinstance(error, ReplicaError):
                self._pipeline.refuse(error)
            self.fail(error)
            self._step.roll_back()
            raise
        buckets = self._step.buckets
        self.last_step = self.reporting.ended(self.step, buckets, over, travelled, start_s, self.last_step)
        self.reporting.end_step(self.step, self.buckets.every)
        self.step += 1
        self.services.ended()
        self._step.end()
        return self.last_step

    def _show(self, over: Exchanged, start_s: float) -> None:
        """Let services, and all who watch, see what a step was like. `start_s`: when the front end began to wait."""
        moments = self._step.moments(start_s, self.services.hold_back)
        is_regular = not self.steering.cut_anew and not over.given_up and self._step.is_of_all
        seen = self.reporting.exchanged(self.step, self._step.buckets, over, moments, is_regular)
        self.services.exchanged(seen)

    def end_epoch(self) -> None:
        """The program says that an epoch is over, between two steps. Before the first it does nothing.

        All ranks call it alike.
        """
        if self.policy is not None and not self.failed:
            self.services.end_epoch(self.step)
            self.steering.follow(self.step)

    def refuse_after_failure(self) -> None:
        """Raise CommunicationError, with the words of the first failure, where an error has ended all exchanges."""
        self._pipeline.refuse_after_failure()

    @property
    def failed(self) -> bool:
        """Whether an error has ended all exchanges."""
        return self._pipeline.failed

    def fail(self, error: BaseException) -> None:
        """The caller met an error of its own in a step: exchange nothing more."""
        self._pipeline.fail(error)
        self.services.failed()
        native.forget_pending()  # it belongs to this step, and must not fail that of another optimizer

    def close(self) -> None:
        """Let the threads end, what is written be complete, and later engines have what moved the bytes. Local."""
        self.closed = True
        with ExitStack() as closing:  # each, also where another one fails
            closing.callback(self._pipeline.stop)
            closing.callback(self.reporting.close)
            closing.callback(self.services.close)
