"""The flow: encode, communicate and decode the buckets of a step, each phase overlapping the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

import torch

from hvd_compress.collectives.base import Exchange
from hvd_compress.devices.lane import HOST, Lane
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, located
from hvd_compress.session.failure import Failure
from hvd_compress.session.in_flight import InFlight, Track, exchanged
from hvd_compress.session.report import Exchanged
from hvd_compress.session.waiting import Waits
from hvd_compress.session.worker import Worker, done, ran

T = TypeVar("T")

log = logging.getLogger("hvd_compress")

KERNEL_LIMIT_S = 10.0
"""More than any kernel takes."""
LEFT = "the optimizer or model was dropped, or the program ended, while gradients were exchanged"
"""Between backward() and step(), or within a backward pass."""
LEFT_LIMIT_S = 10.0
"""How long a rank that leaves so waits for the others."""


class Pipeline:
    """A thread that compresses and decompresses, and one for each track that launches collectives.

    Bucket n's collectives are launched on track n % tracks, in the order of bucket numbers, so that they run at the
    same time as those of its neighbours, in an order that is the same on all ranks.

    An exchange that is light has all its phases in its track's thread; one that sends nothing does not come there: it
    has them in the thread of kernels, or, being light, in the calling thread.

    After the first failure nothing is launched any more: ranks would disagree on which collective comes next.
    """

    def __init__(
        self, timeout_s: float, arrivals: Arrivals | None = None, begin_thread: Callable[[], None] = lambda: None
    ) -> None:
        """Start the threads.

        Args:
            timeout_s: how long ranks may let each other wait.
            arrivals: tells which ranks a timeout was spent on; without it nothing is known of them.
            begin_thread: the first call in each thread that launches kernels or collectives.
        """
        self._failure = Failure()
        self._waits = Waits(timeout_s, arrivals, self._failure)
        self._begin_thread = begin_thread
        self._kernels = Worker("hvd-compress-kernels", begin_thread)
        self._tracks = [Track(0, begin_thread)]
        self._collectives = self._tracks[0].worker
        self._engine: Engine
        self._begun: list[Future[Any]] = []  # by begin(), the last time
        self._begin()

    def _begin(self) -> None:
        self._in_flight: dict[int, tuple[InFlight, Future[Any] | None]] = {}
        self._communicated: list[Future[Future[torch.Tensor]]] = []

    def connect(self, connect: Callable[[], Engine], agree: Callable[[Engine], T], measuring_s: float = 0.0) -> T:
        """Create the engine, then run `agree` on it, in the thread that will launch the collectives.

        `measuring_s`: what that may take to measure, in addition to what ranks may let each other wait. When ranks have
        agreed, as many tracks are made as the engine says.

        A ConfigError or UnsupportedError of either must be one that every rank raises: no collective is left unfinished
        then, and the engine is not abandoned, so that all ranks get to say what is wrong.
        """
        self.refuse_after_failure()

        def call() -> T:
            try:
                with located("first step, choice of the engine"):
                    self._engine = self._failure.engine = connect()
                self._engine.place = f"rank {self._engine.job_rank}, first step, handshake"
                with located(self._engine.place):
                    agreed = agree(self._engine)
                    self._lay(self._engine.tracks)
                    return agreed
            except (ConfigError, UnsupportedError) as error:
                self._failure.refuse(error)
                raise

        future = self._collectives.submit(call)
        self._waits.open()
        try:
            return self._waits.result(future, self._waits.begin(measuring_s), "first step, handshake")
        except (ConfigError, UnsupportedError):
            raise
        except BaseException:  # an interrupt, too
            if self._failure.engine is None:
                self._failure.may_hang = True
                fail_at_exit(lambda: None)  # no engine can be abandoned, yet a collective may be unfinished
            raise

    def _lay(self, tracks: int) -> None:
        """Make as many tracks. Collective."""
        self._tracks[0].engine = self._engine
        if self._engine.world_size > 1:
            for number in range(1, tracks):
                track = Track(number, self._begin_thread)
                self._tracks.append(track)
                track.engine = self._engine.twin()

    def submit(self, number: int, exchange: Exchange, label: str, lane: Lane = HOST, first_track: bool = False) -> None:
        """Hand over bucket `number`, 0 to n-1, in any order. It is launched when all lower numbers have been.

        Called in the thread that filled the bucket. After a failure it is not launched: finish() will say why.
        `first_track`: whether only the first one can launch it; the same on all ranks.
        """
        if self.failed:
            return
        assert number not in self._in_flight, f"bucket {number} was handed over twice"
        track = self._tracks[0 if first_track else number % len(self._tracks)]
        bucket = InFlight(exchange, lane, f"rank {self._engine.job_rank}, {label}", track, exchange.sends)
        lane.record_input()
        # What is light runs in the thread of the collectives: to wake another one takes longer.
        is_light = exchange.is_light and lane is HOST
        start: Callable[[Callable[[], Any]], Future[Any]] = ran if is_light else self._kernels.submit
        encoded: Future[Any] | None = None
        if not exchange.sends:
            encoded = start(partial(self._keep, bucket))
        elif not is_light:
            encoded = start(bucket.encode)
        self._in_flight[number] = bucket, encoded
        while (following := len(self._communicated)) in self._in_flight:
            launched, kept = self._in_flight[following]
            if launched.sends:
                self._communicated.append(launched.track.worker.submit(partial(self._communicate, following)))
            else:
                assert kept is not None
                self._communicated.append(done(kept))

    def finish(self) -> Exchanged:
        """Wait for all buckets that were handed over. What the calling thread does afterwards sees their results.

        Raises:
            CommunicationError: a collective failed, or another rank did not answer within the timeout.
            PayloadError: what arrived is not a payload.
        """
        deadline = self._waits.begin()
        answers = []
        for number, communicated in enumerate(self._communicated):
            bucket = self._in_flight[number][0]
            label, engine = bucket.label, bucket.track.engine
            decoded = self._waits.result(communicated, deadline, label, engine)
            answers.append(self._waits.result(decoded, deadline, label, engine))
        self.refuse_after_failure()
        assert len(self._communicated) == len(self._in_flight), "a bucket is missing"
        buckets = [self._in_flight[number][0] for number in range(len(self._in_flight))]
        for bucket in buckets:
            bucket.lane.wait_output()
        result = exchanged(buckets, answers)
        self._begin()
        return result

    def begin(self, call: Callable[[Engine], T], label: str, measuring_s: float = 0.0) -> Callable[[], T]:
        """Run a collective, in the thread that launches them; call what is returned to wait for it.

        Between two steps, or when the last bucket of a step was handed over: it is launched after that, and the next
        step's buckets after it. finish() does not wait for it. Every rank calls this at the same place.

        `measuring_s`: what the call may take to measure, in addition to what ranks may let each other wait.
        """
        if not self.failed:  # else finish(), or who waits, will say why
            assert len(self._communicated) == len(self._in_flight), "a bucket has not been launched"
        label = f"rank {self._engine.job_rank}, {label}"

        def located_call() -> T:
            self._engine.place = label
            try:
                with located(label):
                    self._failure.require_none()
                with located(lambda: f"{label}, {self._engine.pending}"):
                    return call(self._engine)
            except BaseException as error:
                self._failure.fail(error)
                raise

        future: Future[T] = self._collectives.submit(located_call)
        self._begun = [future]

        def taken() -> T:
            return self._waits.result(future, self._waits.begin(measuring_s), label)

        return taken

    def refuse_after_failure(self) -> None:
        """Raise CommunicationError, with the words of the first failure, where an error has ended all exchanges."""
        self._failure.require_none()

    @property
    def failed(self) -> bool:
        """Whether nothing is launched any more."""
        return self._failure.words is not None

    def refuse(self, error: BaseException) -> None:
        """Launch nothing more, as no rank does: no collective is unfinished, and all ranks get to say what is wrong.

        What begin() was given is over first: another rank may wait for this one in it.
        """
        wait(self._begun, self._waits.timeout_s)
        self._failure.refuse(error)

    def fail(self, error: BaseException) -> None:
        """Launch nothing more, and let the process end although collectives may be unfinished."""
        self._failure.fail(error)

    def stop(self) -> None:
        """Let all threads end, when what has left was exchanged: other ranks take part in it. Then close the engine
        and the connection of the arrivals.

        Where they do not, within LEFT_LIMIT_S, that is a failure.
        """
        if not self.failed and not self._is_exchanged():
            log.error("hvd_compress: %s, and not all ranks take part: this process ends with status 1", LEFT)
            self.fail(CommunicationError(LEFT))
        self._kernels.stop(KERNEL_LIMIT_S)
        wait_s = 0.0 if self._failure.may_hang else KERNEL_LIMIT_S
        for track in self._tracks:
            track.worker.stop(wait_s)
        self._waits.stop(wait_s)
        if self._failure.engine is not None and not self._failure.may_hang:
            self._failure.engine.close()

    def _is_exchanged(self) -> bool:
        """Wait for all that was launched, the collective of begin() too, and return whether it has been."""
        if any(track.worker.is_current for track in self._tracks):
            return not self._in_flight
        return not wait([*self._communicated, *self._begun], LEFT_LIMIT_S).not_done

    def _communicate(self, number: int) -> Future[torch.Tensor]:
        bucket, encoded = self._in_flight[number]
        try:
            bucket.track.engine.place = bucket.label
            if encoded is not None:
                encoded.result()
            else:
                bucket.encode()
            with located(bucket.label):
                self._failure.require_none()
            bucket.communicate()
        except BaseException as error:
            self._failure.fail(error)
            raise
        return ran(bucket.decode) if encoded is None else self._kernels.submit(bucket.decode)

    def _keep(self, bucket: InFlight) -> torch.Tensor:
        """The exchange sends nothing."""
        try:
            bucket.encode()
            bucket.communicated = bucket.encoded[1], bucket.encoded[1]
            return bucket.decode()
        except BaseException as error:
            self._failure.fail(error)
            raise
