"""The flow: encode, communicate and decode the buckets of a step, each phase overlapping the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from hvd_compress.devices.lane import HOST, Lane
from hvd_compress.engines.arrivals import Arrivals, describe
from hvd_compress.engines.base import Call, Engine
from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, located
from hvd_compress.schemes.base import Exchange
from hvd_compress.schemes.phases import PhaseSpans, Span, length
from hvd_compress.schemes.probe import ProbeReport
from hvd_compress.session.report import Exchanged, Outcome
from hvd_compress.session.worker import Worker, ran

T = TypeVar("T")

log = logging.getLogger("hvd_compress")

KERNEL_LIMIT_S = 10.0
"""More than any kernel takes."""
ANNOUNCE_S = 1.0
"""A rank that has waited so long for others tells them that it waits."""
LATE = (
    "A rank that evaluates, saves or loads data meanwhile is late: raise HVD_COMPRESS_TIMEOUT_S, on all ranks, or let "
    "all ranks do it. Otherwise that rank waits in a collective that not all ranks call, such as hvd.allreduce() "
    "within `if hvd.rank() == 0`, has died, is stopped, takes fewer steps, or goes another way (a stock compression, "
    "hvd.join(), rollout())"
)
SLOW = (
    "Where ranks name different places, one calls what others do not, such as end_epoch() or profile_ccr(): call it on "
    "all ranks. Where the network is slow, raise HVD_COMPRESS_TIMEOUT_S, on all ranks"
)
LEFT = "the optimizer or model was dropped, or the program ended, while gradients were exchanged"
"""Between backward() and step(), or within a backward pass."""
LEFT_LIMIT_S = 10.0
"""How long a rank that leaves so waits for the others."""
ANSWER_S = 10.0
"""How long a message of a timeout waits for the launcher to say who is missing."""


class _Track:
    """A thread that launches collectives one after the other, on an engine of its own."""

    def __init__(self, number: int, begin_thread: Callable[[], None]) -> None:
        self.worker = Worker(f"hvd-compress-collectives{f'-{number}' if number else ''}", begin_thread)
        self.engine: Engine


@dataclass
class _InFlight:
    """A bucket on its way, with its phases so far.

    On the host it holds its exchange until that is decoded: payloads of one bucket take the memory of those before.
    On a GPU a stream may still read them.
    """

    exchange: Exchange | None
    lane: Lane
    label: str
    track: _Track
    sends: bool = True
    report: ProbeReport = ProbeReport()
    result: torch.Tensor | None = None
    encode: Span = (0.0, 0.0)
    communicate: Span = (0.0, 0.0)
    decode: Span = (0.0, 0.0)
    calls: tuple[Call, ...] = ()


class Pipeline:
    """A thread that compresses and decompresses, and one for each track that launches collectives.

    Bucket n's collectives are launched on track n % tracks, in the order of bucket numbers, so that they run beside
    those of its neighbours, in an order that is the same on all ranks.

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
        self._arrivals, self._waits = arrivals or Arrivals(), 0
        self._messenger: Worker | None = None  # from the first long wait on
        self._begin_thread = begin_thread
        self._kernels = Worker("hvd-compress-kernels", begin_thread)
        self._tracks = [_Track(0, begin_thread)]
        self._collectives = self._tracks[0].worker
        self._timeout_s = timeout_s
        # In words: the exception's traceback would keep alive whoever was called, the optimizer included.
        self._failure: str | None = None
        self._may_hang = False  # a collective that others have not joined
        self._engine: Engine
        self._lock = threading.Lock()
        self._begun: Future[Any] | None = None  # by begin(), the last time
        self._begin()

    def _begin(self) -> None:
        self._in_flight: dict[int, tuple[_InFlight, Future[Any] | None]] = {}
        self._communicated: list[Future[Future[torch.Tensor]]] = []

    def connect(
        self,
        connect: Callable[[], Engine],
        agree: Callable[[Engine], T],
        measuring_s: float = 0.0,
    ) -> T:
        """Create the engine, then run `agree` on it, in the thread that will launch the collectives.

        `measuring_s`: what that may take to measure, beside what ranks may let each other wait. When ranks have agreed,
        as many tracks are made as the engine says.

        A ConfigError or UnsupportedError of either must be one that every rank raises: no collective is left unfinished
        then, and the engine is not abandoned, so that all ranks get to say what is wrong.
        """

        self.refuse_after_failure()

        def call() -> T:
            try:
                with located("first step, choice of the engine"):
                    self._engine = connect()
                self._engine.place = f"rank {self._engine.job_rank}, first step, handshake"
                with located(self._engine.place):
                    agreed = agree(self._engine)
                    self._lay(self._engine.tracks)
                    return agreed
            except (ConfigError, UnsupportedError) as error:
                self._failure = str(error) or type(error).__name__  # an interrupt has no words
                raise

        future = self._collectives.submit(call)
        self._arrivals.open()
        self._begin_wait()
        try:
            deadline_s = time.monotonic() + measuring_s + self._timeout_s
            return self._wait(future, deadline_s, "first step, handshake")
        except (ConfigError, UnsupportedError):
            raise
        except BaseException:  # an interrupt, too
            if not hasattr(self, "_engine"):
                self._may_hang = True
                fail_at_exit(lambda: None)  # no engine can be abandoned, yet a collective may be unfinished
            raise

    def _lay(self, tracks: int) -> None:
        """Make as many tracks. Collective."""
        self._tracks[0].engine = self._engine
        if self._engine.world_size > 1:
            for number in range(1, tracks):
                track = _Track(number, self._begin_thread)
                self._tracks.append(track)
                track.engine = self._engine.twin()

    def submit(self, number: int, exchange: Exchange, label: str, lane: Lane = HOST, first_track: bool = False) -> None:
        """Hand over bucket `number`, 0 to n-1, in any order. It is launched when all lower numbers have been.

        Called in the thread that filled the bucket. After a failure it is not launched: finish() will say why.
        `first_track`: whether only the first one can launch it; the same on all ranks.
        """
        if self._failure is not None:
            return
        assert number not in self._in_flight, f"bucket {number} was handed over twice"
        track = self._tracks[0 if first_track else number % len(self._tracks)]
        bucket = _InFlight(exchange, lane, f"rank {self._engine.job_rank}, {label}", track, exchange.sends)
        lane.record_input()
        # What is light runs in the thread of the collectives: to wake another one takes longer.
        is_light = exchange.is_light and lane is HOST
        start: Callable[[Callable[[], Any]], Future[Any]] = ran if is_light else self._kernels.submit
        encoded: Future[Any] | None = None
        if not exchange.sends:
            encoded = start(partial(self._keep, bucket))
        elif not is_light:
            encoded = start(partial(self._encode, bucket))
        self._in_flight[number] = bucket, encoded
        while (following := len(self._communicated)) in self._in_flight:
            launched, kept = self._in_flight[following]
            if launched.sends:
                self._communicated.append(launched.track.worker.submit(partial(self._communicate, following)))
            else:
                assert kept is not None
                self._communicated.append(_done(kept))

    def finish(self) -> Exchanged:
        """Wait for all buckets that were handed over. What the calling thread does afterwards sees their results.

        Raises:
            CommunicationError: a collective failed, or another rank did not answer within the timeout.
            PayloadError: what arrived is not a payload.
        """
        deadline = time.monotonic() + self._timeout_s
        self._begin_wait()
        answers = []
        for number, communicated in enumerate(self._communicated):
            bucket = self._in_flight[number][0]
            label, engine = bucket.label, bucket.track.engine
            answers.append(self._wait(self._wait(communicated, deadline, label, engine), deadline, label, engine))
        self.refuse_after_failure()
        assert len(self._communicated) == len(self._in_flight), "a bucket is missing"
        buckets = [self._in_flight[number][0] for number in range(len(self._in_flight))]
        for bucket in buckets:
            bucket.lane.wait_output()
        nonfinite = _nonfinite(answers)
        calls = [call for bucket in buckets for call in bucket.calls]
        seconds = {
            "encode": sum(length(bucket.encode) for bucket in buckets),
            "communicate": sum(call.seconds for call in calls),
            "decode": sum(length(bucket.decode) for bucket in buckets),
        }
        self._begin()
        return Exchanged(
            nonfinite,
            seconds,
            sum(call.sent_bytes for call in calls),
            sum(bucket.lane.take_bus_bytes() for bucket in buckets),
            tuple(PhaseSpans(bucket.encode, bucket.communicate, bucket.decode, bucket.calls) for bucket in buckets),
            tuple(Outcome(bucket.report, bucket.result) for bucket in buckets),
        )

    def begin(self, call: Callable[[Engine], T], label: str, measuring_s: float = 0.0) -> Callable[[], T]:
        """Run a collective, in the thread that launches them; call what is returned to wait for it.

        Between two steps, or when the last bucket of a step was handed over: it is launched behind that, and the next
        step's buckets behind it. finish() does not wait for it. Every rank calls this at the same place.

        `measuring_s`: what the call may take to measure, beside what ranks may let each other wait.
        """
        if self._failure is None:  # else finish(), or who waits, will say why
            assert len(self._communicated) == len(self._in_flight), "a bucket has not been launched"
        label = f"rank {self._engine.job_rank}, {label}"

        def located_call() -> T:
            self._engine.place = label
            try:
                with located(label):
                    self.refuse_after_failure()
                with located(lambda: f"{label}, {self._engine.pending}"):
                    return call(self._engine)
            except BaseException as error:
                self.fail(error)
                raise

        future: Future[T] = self._collectives.submit(located_call)
        self._begun = future

        def taken() -> T:
            self._begin_wait()
            return self._wait(future, time.monotonic() + measuring_s + self._timeout_s, label)

        return taken

    def refuse_after_failure(self) -> None:
        """Raise CommunicationError, with the words of the first failure, where an error has ended all exchanges."""
        if self._failure is not None:
            raise CommunicationError(
                f"nothing is exchanged any more, since an earlier exchange failed: {self._failure}"
            )

    def reopen(self, arrivals: Arrivals | None = None) -> None:
        """Forget a failure, and the engine: connect() comes next. Between two steps, or after one that has failed.

        `arrivals`: of the ranks that meet then, as in the beginning.

        Raises UnsupportedError where a collective may be unfinished that nothing can end.
        """
        begun = hasattr(self, "_engine")
        if self._may_hang and begun:
            self._engine.abort(self._failure or "")
        elif self._may_hang:
            self.refuse_after_failure()
        left = [encoded for _, encoded in self._in_flight.values() if encoded is not None]
        left += [*self._communicated, *([self._begun] if self._begun is not None else [])]
        if wait(left, KERNEL_LIMIT_S + self._timeout_s).not_done:
            raise UnsupportedError("what was exchanged has not ended with its engine: this process cannot go on")
        decoded = [each.result() for each in self._communicated if not each.cancelled() and each.exception() is None]
        wait(decoded, KERNEL_LIMIT_S)
        for track in self._tracks[1:]:
            track.worker.stop(KERNEL_LIMIT_S)
        if begun:
            self._engine.close()
            del self._engine
            vars(self._tracks[0]).pop("engine", None)
        self._tracks, self._begun = self._tracks[:1], None
        self._arrivals, self._waits = arrivals or Arrivals(), 0
        self._failure, self._may_hang = None, False
        self._begin()

    def stop(self) -> None:
        """Let all threads end, when what has left was exchanged: other ranks take part in it. Then close the engine
        and the connection of the arrivals.

        Where they do not, within LEFT_LIMIT_S, that is a failure.
        """
        if self._failure is None and not self._is_exchanged():
            log.error("hvd_compress: %s, and not all ranks take part: this process ends with status 1", LEFT)
            self.fail(CommunicationError(LEFT))
        self._kernels.stop(KERNEL_LIMIT_S)
        for worker in (*(track.worker for track in self._tracks), self._messenger):
            if worker is not None:
                worker.stop(0.0 if self._may_hang else KERNEL_LIMIT_S)
        self._arrivals = Arrivals()  # it may have a connection of its own
        if hasattr(self, "_engine") and not self._may_hang:
            self._engine.close()

    def _is_exchanged(self) -> bool:
        """Wait for all that was launched, the collective of begin() too, and return whether it has been."""
        if any(track.worker.is_current for track in self._tracks):
            return not self._in_flight
        launched = [*self._communicated, *([self._begun] if self._begun is not None else [])]
        return not wait(launched, LEFT_LIMIT_S).not_done

    @property
    def failed(self) -> bool:
        """Whether nothing is launched any more."""
        return self._failure is not None

    def refuse(self, error: BaseException) -> None:
        """Launch nothing more, as no rank does: no collective is unfinished, and all ranks get to say what is wrong.

        What begin() was given is over first: another rank may wait for this one in it.
        """
        if self._begun is not None:
            wait([self._begun], self._timeout_s)
        with self._lock:
            self._failure = self._failure or str(error)

    def fail(self, error: BaseException) -> None:
        """Launch nothing more, and let the process end although collectives may be unfinished."""
        with self._lock:
            first = self._failure is None
            if first:
                self._failure = str(error) or type(error).__name__  # an interrupt has no words
                self._may_hang = True
        if first and hasattr(self, "_engine"):
            self._engine.abandon()

    def _encode(self, bucket: _InFlight) -> None:
        assert bucket.exchange is not None
        with located(f"{bucket.label}, compressing"), bucket.lane.encoding():
            bucket.encode = _span(bucket.exchange.encode)

    def _communicate(self, number: int) -> Future[torch.Tensor]:
        bucket, encoded = self._in_flight[number]
        engine, exchange = bucket.track.engine, bucket.exchange
        assert exchange is not None
        try:
            engine.place = bucket.label
            if encoded is not None:
                encoded.result()
            else:
                self._encode(bucket)
            with located(bucket.label):
                self.refuse_after_failure()
            with located(lambda: f"{bucket.label}, {engine.pending}"), bucket.lane.communicating():
                bucket.communicate = _span(partial(exchange.communicate, engine))
                bucket.calls = tuple(engine.take_calls())
        except BaseException as error:
            self.fail(error)
            raise
        if encoded is not None:
            return self._kernels.submit(partial(self._decode, bucket))
        return _done(self._decode(bucket))

    def _keep(self, bucket: _InFlight) -> torch.Tensor:
        """The exchange sends nothing."""
        try:
            self._encode(bucket)
            bucket.communicate = bucket.encode[1], bucket.encode[1]
            return self._decode(bucket)
        except BaseException as error:
            self.fail(error)
            raise

    def _decode(self, bucket: _InFlight) -> torch.Tensor:
        start, exchange = time.perf_counter(), bucket.exchange
        assert exchange is not None
        with located(f"{bucket.label}, decompressing"), bucket.lane.decoding():
            finite = exchange.decode()
        bucket.report, bucket.result = exchange.report, exchange.result
        if bucket.lane.device.type == "cpu":
            bucket.exchange = None
        bucket.decode = start, time.perf_counter()
        return finite

    def _wait(self, future: Future[T], deadline: float, label: str, engine: Engine | None = None) -> T:
        """Wait for what other ranks have a part in. The calls between two of `_begin_wait` are one wait.

        `engine`: on which it is launched, by default that of the first track.
        """
        try:
            first = min(ANNOUNCE_S, self._timeout_s / 4)
            wait([future], max(0.0, min(first, deadline - time.monotonic())))
            if not future.done():
                self._announce()
            return future.result(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        except FutureTimeout:
            engine = engine or getattr(self, "_engine", None)
            doing = engine.pending if engine is not None else "the choice of the engine"
            if engine is not None and not engine.place.endswith(label):
                doing = f"{doing} ({engine.place})"
            waited = f"{self._timeout_s:g} s (HVD_COMPRESS_TIMEOUT_S)"
            failure = CommunicationError(f"{label}: no answer within {waited} in {doing}: {self._missing()}")
            self.fail(failure)
            raise failure from None
        except BaseException as error:
            self.fail(error)
            raise

    def _announce(self) -> None:
        """Tell others that this rank waits. What keeps it from that must not end a step that may still come to pass."""
        if self._messenger is None:
            self._messenger = Worker("hvd-compress-arrivals")
        self._messenger.submit(partial(self._tell, self._waits))

    def _tell(self, wait: int) -> None:
        try:
            self._arrivals.announce(wait)
        except Exception as error:
            self._arrivals = Arrivals(f"which one cannot be told: {type(error).__name__}: {error}")

    def _missing(self) -> str:
        """Say who has not arrived where this rank waits, and what to do."""
        assert self._messenger is not None
        try:
            missing = self._messenger.submit(self._who).result(ANSWER_S)
            return f"{describe(missing, self._arrivals.obstacle)}. {LATE if missing != () else SLOW}"
        except FutureTimeout:
            why = f"the launcher has not answered within {ANSWER_S:g} s"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        return f"{describe(None, f'which one cannot be told: {why}')}. {LATE}"

    def _who(self) -> tuple[int, ...] | None:
        return self._arrivals.missing(self._waits)

    def _begin_wait(self) -> None:
        """All ranks come by here in the same order."""
        self._waits += 1


def _span(call: Callable[[], None]) -> Span:
    start = time.perf_counter()
    call()
    return start, time.perf_counter()


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _nonfinite(answers: list[torch.Tensor]) -> tuple[int, ...]:
    """Return the numbers of the buckets that are not finite.

    The host waits for a GPU here, once a step where all are finite.
    """
    devices = dict.fromkeys(answer.device for answer in answers)
    if all([bool(torch.stack([a for a in answers if a.device == device]).all()) for device in devices]):
        return ()
    return tuple(number for number, answer in enumerate(answers) if not answer)
