"""The exchange session: a policy, a pipeline and what buckets remember, without parameters. Every front end has one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path as FilePath
from time import perf_counter
from typing import Any

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part, Slot
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.devices import Lanes
from hvd_compress.engines import wire
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, ReplicaError, UsageError, located, received
from hvd_compress.feedback.loss_scale import LossScale
from hvd_compress.feedback.states import RESULT_SUM, States
from hvd_compress.policies import BucketMetrics, DecisionPolicy, StepMoments
from hvd_compress.policies.plan_in_use import plan_in_use
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.schemes import Probe
from hvd_compress.session import gathering
from hvd_compress.session.bucket import SessionBucket
from hvd_compress.session.buckets import Buckets
from hvd_compress.session.handshake import Agreement
from hvd_compress.session.metrics import StepMetrics
from hvd_compress.session.notices import tell_given_up, tell_unused
from hvd_compress.session.observers import Observers
from hvd_compress.session.opening import Opening, Resuming
from hvd_compress.session.pipeline import Pipeline
from hvd_compress.session.profiling import CcrMeasurement, Profiling
from hvd_compress.session.replicas import ReplicaCheck
from hvd_compress.session.report import Exchanged, StepReport
from hvd_compress.session.step import Step
from hvd_compress.settings import Settings
from hvd_compress.warned import warn_caller


class Session:
    """Exchanges the buckets of one step after the other, over the ranks of an engine.

    A front end calls open() at the end of the first step, and set_buckets() there and whenever buckets are cut anew;
    in each step begin_step(), mark_ready() where it has put a gradient into a bucket, submit() for every bucket, in any
    order, and end_step(). It calls fail() for an error of its own in a step, and close() at the end. A step is a
    transaction: what buckets remember changes when all of it succeeded, or not at all.

    Attributes:
        parameters: what a plan of buckets needs to know of each, by name.
        buckets: what it exchanges; none before set_buckets().
        states: what buckets remember, by parameter name.
        loss_scale: the units of residuals in mixed precision.
        step: of the coming exchange; the same on all ranks from open() on.
        last_step: a report of the last exchange; None before the first.
        policy: what decides; None before open().
        profiling: what records the steps, if anything; a front end that knows parameters sets it before open().
        ccr: what measures the communication-to-computation ratio; a front end that knows parameters gives a profiler.
        replicas: what checks that replicas are equal, if anything; a front end that knows parameters sets it.
        resumes_with: names by bucket, as they were cut when the checkpoint was saved that was loaded; empty where none
            was, and after open() where ranks have loaded others.
        cuts_stand: whether no other cut of the gradients is being tried, which a checkpoint would keep for good.
        resumes_as: what the policy had chosen then, as `DecisionPolicy.chosen`.
        resumes_kinds: of what was remembered then, and is not zero: "residual", and kinds of compressors' states.
        learning_rates: gives those of the coming steps, where a front end knows the optimizer.
        unsent: names of parameters that are to have no gradient, since the last exchange has sent nothing of them; the
            same on all ranks.
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
        self._request, self._settings, self._connect = request, settings, connect
        lanes = lanes or Lanes()
        self._pipeline = Pipeline(settings.timeout_s, arrivals, partial(lanes.set_device, tuple(devices)))
        self._engine: Engine
        self.states = States()
        self.loss_scale = LossScale(self.states)
        self.buckets = Buckets(self.states, self.loss_scale, lanes, self.allocates_sum)
        self._step = Step(self._pipeline, self.buckets, self.loss_scale, request.feedback, average, predivide_factor)
        self.step = 0
        self.last_step: StepReport | None = None
        self.policy: DecisionPolicy | None = None
        self.profiling: Profiling | None = None
        self.ccr = CcrMeasurement(settings.ccr)
        self.replicas: ReplicaCheck | None = None
        self.resumes_with: tuple[tuple[str, ...], ...] = ()
        self.cuts_stand = True
        self.resumes_as = ""
        self.resumes_kinds: frozenset[str] = frozenset()
        self.learning_rates: Callable[[], Sequence[float]] = tuple
        self.unsent: frozenset[str] = frozenset()
        self.may_give_up = False
        self._observers: Observers  # from open() on
        self._metrics = StepMetrics()
        self._opening: Opening  # from open() on
        self._goes_on = False  # with what another process has chosen
        self._cut_anew = False  # within a step
        self._closed = False

    @property
    def controller(self) -> DecisionPolicy | None:
        """What chooses how buckets travel; None before the first exchange, and where all is fixed."""
        return self.policy if self.policy is not None and self.policy.history is not None else None

    @property
    def decisions(self) -> dict[tuple[str, ...], Decision]:
        """What is decided for each bucket, by the names of its parameters; empty before the first exchange."""
        return self.buckets.decisions

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The buckets, by number; empty before plan()."""
        return self.buckets.layouts

    @property
    def holds_back(self) -> bool:
        """Whether buckets are to be handed over when the backward pass is over, and not beside it."""
        return self._is_profiled or self.ccr.active

    @property
    def _is_profiled(self) -> bool:
        return self.profiling is not None and self.profiling.active

    @property
    def connected(self) -> bool:
        """Whether ranks have met, and the session is not closed."""
        return self.policy is not None and not self._closed

    @property
    def is_within_step(self) -> bool:
        """Whether a step has begun and is not over."""
        return self._step.begun_s is not None

    @property
    def engine(self) -> Engine:
        """What moves the bytes, from open() on."""
        return self._engine

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
        self._opening = Opening(self._request, self._settings, self.parameters, order, sparse, options, by_rows)
        agreement = self._meet(Resuming(self.step, self.resumes_with, self.resumes_as))
        self.resumes_with = self.resumes_with if agreement.resumes else ()
        self._observers.opened(self._request, self.parameters, self.learning_rates is not tuple)
        return agreement

    def _meet(self, resuming: Resuming) -> Agreement:
        meet = partial(self._opening.meet, resuming=resuming, profiling=self.profiling, ccr=self.ccr)

        def met(engine: Engine) -> Agreement:
            self._engine = engine
            found = meet(engine)
            self.policy, self._goes_on = found.policy, found.goes_on
            return found.agreement

        agreement = self._pipeline.connect(self._connect, met, self._settings.calibration_s)
        assert self.policy is not None
        if not self._goes_on:
            self.states.forget_kind(RESULT_SUM)  # of an epoch that nobody goes on with
        self.step = agreement.step
        if not hasattr(self, "_observers"):
            self._observers = Observers(self._settings, self._engine, self._step.returned_s)
        self._observers.watch(self.policy, self._engine.world_size)
        return agreement

    def reopen(self, connect: Callable[[], Engine], arrivals: Arrivals | None = None) -> None:
        """Go on with other ranks: between two steps, or after one that has failed, which does not count on any.

        All ranks that go on call it. Buckets stay as they are cut; each rank keeps what it remembered before the step,
        so that what the next exchange averages is the mean over the ranks that are there. The policy goes on with what
        it had chosen, as from a checkpoint: auto() where ranks are as many as before.

        Args:
            connect: creates the engine over these ranks, of the same kind as before.
            arrivals: of these ranks, as in the beginning.

        Raises:
            UsageError: before open(), within a step, or after close().
            UnsupportedError: a collective may be unfinished, and the engine cannot be aborted.
            ConfigError: ranks differ, as in open().
        """
        if self.policy is None or self._closed or (self.is_within_step and not self.failed):
            raise UsageError(
                "reopen() comes between two steps, or after a step that has failed, from open() on and until close()"
            )
        self._pipeline.reopen(arrivals)
        self.buckets.restart()
        self._step.forget()
        resuming = Resuming(self.step, (), self.policy.chosen(), is_again=True)
        self.ccr.close()
        if self.replicas is not None:
            self.replicas.restart()
        self._connect = connect
        self._meet(resuming)
        self.set_buckets(self.layouts, {})

    def set_buckets(self, layouts: Sequence[Layout], devices: Mapping[str, torch.device]) -> None:
        """Exchange these buckets, and no others, from now on; buckets of sparse gradients come last.

        What is remembered follows its parameters. Buckets that are as before keep what they have, also in the middle of
        a step. The memory of others is free as soon as all of their parameters have new ones.

        Args:
            devices: where gradients lie, by the layouts' places.
        """
        assert self.policy is not None
        assert self._step.is_of_all, "a step of some buckets is on its way"
        self._cut_anew = self.buckets.are_launched
        dense = [layout for layout in layouts if not layout.sparse]
        decisions = list(self.policy.setup(self.step, dense, self._pipeline.begin))
        decisions += [_as_rows(layout) for layout in layouts[len(dense) :]]
        if self.is_within_step:
            self.states.keep_commits()
        self.buckets.cut(layouts, decisions, devices, self._engine.capabilities.devices, self._goes_on)
        if not self._cut_anew:
            self.follow(self.step)
        self._tell_unused()
        self._share()

    def _tell_unused(self) -> None:
        """Once after a checkpoint was loaded: what it remembers, and this compression has no use for.

        Where a policy chooses, another one of its compressors may have.
        """
        loaded, self.resumes_kinds = self.resumes_kinds, frozenset()
        if not loaded or self.controller is not None or self._engine.rank or self._engine.world_size == 1:
            return
        if unused := self.buckets.unused(loaded):
            tell_unused(unused)

    def _share(self) -> None:
        """Let all ranks begin with the same, where results depend on it."""
        if not (buckets := self.buckets.take_unshared()):
            return

        def share(engine: Engine) -> None:
            with engine.aside():  # it belongs to no step
                for bucket in buckets:
                    bucket.share(partial(engine.control.broadcast, root=0))

        self._pipeline.begin(share, f"step {self.step}, state of rank 0")()

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

    @property
    def remembers(self) -> bool:
        """Whether the last exchange has left anything that drop_step() would take back."""
        return any(bucket.state.can_revert for bucket in self.buckets.every)

    def hold_back(self, names: Collection[str]) -> None:
        """Nobody takes the last results of these parameters: what was not sent of them waits. Between two steps.

        Nothing is communicated, and all ranks call it alike.
        """
        self.buckets.hold_back(names)

    def release_gradients(self) -> None:
        """The front end may free the memory of the last gradients, and hand over others. Between two steps."""
        for bucket in self.buckets.every:
            bucket.release_gradient()

    def claim(self) -> None:
        """Take over what a checkpoint has brought, between two steps: also of buckets that had no residual."""
        for bucket in self.buckets.every:
            bucket.claim()

    @property
    def compressor(self) -> Compressor:
        """What was asked for; a policy may take others."""
        return self._request.compressor

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        """Return which of these parameters must not share a bucket with others, by the policy. After open()."""
        assert self.policy is not None
        return self.policy.parts(names)

    def save_plan(self, path: str | FilePath) -> None:
        """Write what is in use to a file, for Compression.plan(path). Nothing is communicated.

        Raises:
            UsageError: nothing was exchanged yet, some buckets are skipped in the coming step, or the compressor is the
                user's own.
            PlanError: the file cannot be written.
        """
        if not self.buckets.every:
            raise UsageError("nothing is in use before the first step: call save_plan() after it")
        plan_in_use(self.decisions, self.layouts, self._engine.world_size).write(FilePath(path))
        if self.policy is not None and self.policy.plan_lacks:
            warn_caller(self.policy.plan_lacks)

    def begin_step(self, buckets: Sequence[int] | None = None) -> None:
        """A step begins: before its first bucket is handed over. Later calls in the same step change nothing.

        It may last: a program may train on between the hand-over of its buckets and end_step().

        Args:
            buckets: the numbers of those that it exchanges, the same on all ranks; all, if not given.
        """
        self._step.begin(buckets)

    def mark_ready(self, number: int) -> None:
        """The calling thread has put a gradient into a bucket."""
        self.buckets.every[number].lane.mark_ready()

    def is_launched(self, number: int) -> bool:
        """Whether a bucket has been handed over in this step."""
        return self.buckets.every[number].launched

    def submit(self, number: int, gradient: torch.Tensor) -> None:
        """Hand over a bucket's gradient, in any order of numbers; each once a step. The result will lie there.

        Args:
            gradient: (numel,), in the layout's dtype, where its place says; or a sparse one, of a sparse layout.
        """
        if not self.failed:  # else end_step() will say why
            self._step.submit(number, gradient, self.step, self._engine)

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
            exchanged, given_up = self._finish(gives_up)
            self._show(exchanged, given_up, start_s)
            travelled = self._settle(exchanged)
        except BaseException as error:  # an interrupt, too: a step that was taken by halves must not go on
            if isinstance(error, ReplicaError):
                self._pipeline.refuse(error)
            self.fail(error)
            self._step.roll_back()
            raise
        buckets, observers, known = self._step.buckets, self._observers, self.last_step
        if given_up and not self._engine.rank:
            tell_given_up(self.step)
        if not exchanged.finite and not given_up:
            observers.nonfinite(self.step, [buckets[place] for place in exchanged.nonfinite])
        before = known.nonfinite_steps if known is not None else 0
        dense_bytes = _dense_bytes(buckets, self._engine.world_size)
        self.last_step = StepReport.of(exchanged, self.step, perf_counter() - start_s, dense_bytes, before)
        self._metrics.end_step(self.last_step, travelled)
        if observers.end_step(self.step, self._metrics):
            self.look()
        self.step += 1
        if self._is_profiled:
            assert self.profiling is not None
            self.profiling.end_step(self._pipeline.begin)
        self._step.end()
        return self.last_step

    def _finish(self, gives_up: bool) -> tuple[Exchanged, bool]:
        """Wait for all buckets, and commit. Return whether the step is given up on all ranks."""
        assert self.policy is not None
        self.policy.launched(self.step)
        exchanged = self._pipeline.finish()
        with located(f"rank {self._engine.job_rank}, step {self.step}"), received():
            native.check_pending()  # what a GPU's kernels found in the payloads of other ranks
        given_up = self.may_give_up and not exchanged.finite and self._is_given_up(gives_up)
        self._step.commit(exchanged)
        self._check_replicas()
        return exchanged, given_up

    def _show(self, exchanged: Exchanged, given_up: bool, start_s: float) -> None:
        """Let the policy, and all who watch, see what a step was like. `start_s`: when the front end began to wait."""
        policy, observers, step, buckets = self.policy, self._observers, self._step, self._step.buckets
        assert policy is not None
        begun_s, held_back = min(step.begun_s or start_s, start_s), self.holds_back
        moments = StepMoments(step.returned_s, begun_s, start_s, perf_counter(), held_back)
        observers.trace(self.step, buckets, exchanged.spans, moments)
        if self._cut_anew or given_up or not step.is_of_all:
            policy.resume()  # it knows nothing of how this step travelled
        else:
            metrics = zip(exchanged.spans, buckets, strict=True)
            measured = [BucketMetrics(spans, b.report, b.state) for spans, b in metrics]
            policy.observe(self.step, self._metrics.observe(measured), moments)
            observers.exchanged(self.step, buckets, exchanged.spans)
        self.ccr.end_step(self.step, moments.waited_s, policy, self._pipeline.begin, self._engine.rank, self.layouts)

    def _settle(self, exchanged: Exchanged) -> list[tuple[Layout, Decision]]:
        """Let buckets travel as the policy says from the next step on. Return how they have travelled."""
        policy, buckets = self.policy, self._step.buckets
        assert policy is not None
        if policy.count_step():
            self._end_epoch(self.step + 1)
        if exchanged.finite and policy.adds_results:
            for bucket in buckets:
                bucket.add_result()
        held = [name for bucket in buckets for name in bucket.scheme.unsent(bucket.layout)]
        # A step without any gradient is an error of torch's GradScaler: one parameter keeps its zeros.
        self.unsent = frozenset(held[1:] if len(held) == len(self.parameters) else held)
        travelled = [(bucket.layout, bucket.decision) for bucket in buckets]
        self._step.release()
        self._cut_anew = False
        self.follow(self.step + 1)
        return travelled

    def metrics(self) -> dict[str, float]:
        """Return the figures of the last step by name; none before the first."""
        return self._metrics.figures()

    def look(self) -> None:
        """Measure the relative error of the coming step, between two steps; nothing is communicated."""
        self._metrics.look(self.buckets.every)

    def gather_figures(self, figures: Sequence[float], what: str = "figures of the program") -> list[list[float]]:
        """Return the figures of all ranks, which bring as many; between two steps. Collective.

        `what` they are is told where a rank does not come.

        Raises UsageError before the first step, when ranks have not met; ConfigError where figures are no numbers, and
        on all ranks alike where one brings more than another.
        """
        mine = gathering.numbers(figures)
        if self.policy is None:
            raise UsageError("ranks have not met before their first step: call it after that")
        if self._closed:
            raise UsageError("this optimizer or model exchanges nothing any more, so ranks do not meet")
        ranks = self._pipeline.begin(partial(gathering.gathered, mine), f"step {self.step}, {what}")()
        gathering.require_as_many(ranks)
        return ranks

    def gather(self, value: Any) -> list[Any] | None:
        """Return on the first rank what all ranks bring, and None on others; between two steps. Collective.

        Raises CommunicationError, which names the ranks that have not come.
        """
        return self._pipeline.begin(partial(gathering.on_first, value), f"step {self.step}, what is saved")()

    def end_epoch(self) -> None:
        """The program says that an epoch is over, between two steps; of a policy that counts epochs it does nothing.

        All ranks call it alike. Before the first step it does nothing.
        """
        if self.policy is not None and not self.policy.counts_epochs and not self.failed:
            self._end_epoch(self.step)
            self.follow(self.step)

    def _end_epoch(self, step: int) -> None:
        assert self.policy is not None
        states, unit = [bucket.state for bucket in self.buckets.every], self.loss_scale.scale or 1.0
        self.policy.end_epoch(step, self.learning_rates(), states, unit, self._pipeline.begin)
        for state in states:
            state.keep(RESULT_SUM)

    @property
    def allocates_sum(self) -> bool:
        """Whether the results of steps are summed, in what buckets remember."""
        return self._request.policy is not None and self._request.policy.allocates_sum

    def follow(self, step: int) -> None:
        """Let buckets travel as the policy says, from step `step` on; between two steps."""
        assert self.policy is not None
        every = self.buckets.every
        for number, decision in self.policy.decide(step).items():
            every[number].decide(decision)
        for number in self.policy.dropped(step):
            every[number].drop()
        self._share()
        probes = self.policy.probes(step)
        for number, bucket in enumerate(every):
            bucket.probe = probes.get(number, Probe())
        self._observers.decided(self.step, every, self.policy)

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
        self.ccr.close()
        native.forget_pending()  # it belongs to this step, and must not fail that of another optimizer

    def close(self) -> None:
        """Let the threads end, what is written be complete, and later engines have what moved the bytes. Local."""
        self._closed = True
        with ExitStack() as closing:  # each, also where another one fails
            closing.callback(self._pipeline.stop)
            for written in (getattr(self, "_observers", None), self.policy, self.profiling, self.ccr):
                if written is not None:
                    closing.callback(written.close)

    def _is_given_up(self, mine: bool) -> bool:
        """Some gradients were not finite: return whether all ranks give the step up. Collective.

        Raises CommunicationError where some do, on all ranks.
        """
        figures = self._pipeline.begin(partial(gathering.gathered, [mine]), f"step {self.step}, who gives it up")()
        ranks = [str(rank) for rank, (gives_up,) in zip(self._engine.ranks, figures, strict=True) if gives_up]
        if 0 < len(ranks) < len(figures):
            error = CommunicationError(
                f"step {self.step}: an error has ended the backward pass on {'ranks' if ranks[1:] else 'rank'} "
                f"{', '.join(ranks)}, and not on the others, whose gradients lack those: a step can be given up on all "
                "ranks alone"
            )
            self._pipeline.refuse(error)  # no collective is unfinished
            raise error
        return bool(ranks)

    def _check_replicas(self) -> None:
        if self.replicas is None or self._is_profiled or self._engine.world_size == 1:
            return
        if not all(each.scheme.averages for each in self.buckets.every):
            return
        results = [(each.layout, each.flat) for each in self._step.buckets if each.flat is not None]
        self.replicas.end_step(self.step, results, self._pipeline.begin)


def _dense_bytes(buckets: Sequence[SessionBucket], world_size: int) -> int:
    """Return what uncompressed exchanges of all gradients that are not sparse would send."""
    found = [(each.scheme.replaces, each.layout.nbytes) for each in buckets if not each.layout.sparse]
    return sum(getattr(wire, verb)(nbytes, world_size) for verb, nbytes in found)


def _as_rows(layout: Layout) -> Decision:
    return Decision(Cast(), Path("sparse-rows"), layout.device_type, "its gradient is sparse")
