"""Order, overlap and failure of the pipeline.

No time passes: what must overlap waits for each other, and a time-out is over when its test says so.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from threading import Timer
from types import SimpleNamespace

import pytest
import torch

from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.errors import CommunicationError, ConfigError, PayloadError, ReplicaError
from hvd_compress.schemes.base import Exchange
from hvd_compress.schemes.phases import PhaseSpans
from hvd_compress.session import pipeline as pipeline_module
from hvd_compress.session.pipeline import Pipeline

PATIENCE_S, TIMEOUT_S = 120.0, 0.3
"""How long a test waits for what must happen: it passes long before, or fails. And the time-out that must be over."""


class Scripted(Exchange):
    """An exchange whose phases are given, and noted."""

    def __init__(self, name: str, log: list[str], **phases: Callable[[], object]) -> None:
        self.name, self.log, self.phases = name, log, phases

    def _run(self, phase: str) -> None:
        self.log.append(f"{phase} {self.name}")
        self.phases.get(phase, lambda: None)()

    def encode(self) -> None:
        self._run("encode")

    def communicate(self, engine: Engine) -> None:
        self._run("communicate")

    def decode(self) -> torch.Tensor:
        self._run("decode")
        return torch.tensor(self.phases.get("finite", lambda: True)())


@pytest.fixture
def pipeline() -> Pipeline:
    return connected(PATIENCE_S)


@pytest.fixture(autouse=True)
def kernels_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "KERNEL_LIMIT_S", PATIENCE_S)


def connected(timeout_s: float, arrivals: Arrivals | None = None) -> Pipeline:
    pipeline = Pipeline(timeout_s, arrivals)
    pipeline.connect(lambda: InProcessWorld(1).engine(0), lambda engine: None, PATIENCE_S)
    return pipeline


def passes(monkeypatch: pytest.MonkeyPatch, begun: threading.Event, seconds: float = math.inf) -> None:
    """Let these seconds pass for who waits next, as soon as what he waits for has begun."""
    asked = []

    def monotonic() -> float:
        asked.append(True)
        if len(asked) == 1:  # for the deadline
            return 0.0
        assert begun.wait(PATIENCE_S)
        return seconds

    clock = SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(pipeline_module, "time", clock)


class Hanging:
    """What does not return until the test is over, and says when it has begun."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go_on.set()


def test_on_the_host_an_exchange_is_released_when_it_is_decoded(pipeline: Pipeline) -> None:
    """So payloads of a step's buckets do not add up."""
    exchanges = [Scripted("0", []), Scripted("1", [])]
    first, alive = weakref.ref(exchanges[0]), []
    exchanges[1].phases = {"decode": lambda: alive.append(first())}
    while exchanges:
        pipeline.submit(2 - len(exchanges), exchanges.pop(0), "a bucket")
    pipeline.finish()
    assert alive == [None]


def raises(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_collectives_are_launched_in_the_order_of_numbers(pipeline: Pipeline) -> None:
    log: list[str] = []
    for number in (2, 0, 3, 1):
        pipeline.submit(number, Scripted(str(number), log), f"bucket {number}")
    exchanged = pipeline.finish()
    assert exchanged.finite
    assert set(exchanged.seconds) == {"encode", "communicate", "decode"}
    assert [entry for entry in log if "communicate" in entry] == [f"communicate {n}" for n in range(4)]
    assert sorted(log) == sorted(f"{phase} {n}" for phase in ("encode", "communicate", "decode") for n in range(4))


def test_nothing_is_launched_before_all_lower_numbers_are_there(pipeline: Pipeline) -> None:
    log: list[str] = []
    pipeline.submit(1, Scripted("1", log), "bucket 1")
    pipeline.submit(2, Scripted("2", log), "bucket 2")
    pipeline.submit(0, Scripted("0", log), "bucket 0")
    pipeline.finish()
    assert next(entry for entry in log if "communicate" in entry) == "communicate 0"


def test_compressing_a_bucket_overlaps_communicating_the_one_before(pipeline: Pipeline) -> None:
    """Each waits for the other: if they did not run at once, neither would end."""
    compressing, communicating = threading.Event(), threading.Event()

    def encode() -> None:
        compressing.set()
        assert communicating.wait(PATIENCE_S)

    def communicate() -> None:
        communicating.set()
        assert compressing.wait(PATIENCE_S)

    log: list[str] = []
    pipeline.submit(0, Scripted("0", log, communicate=communicate), "bucket 0")
    pipeline.submit(1, Scripted("1", log, encode=encode), "bucket 1")
    assert pipeline.finish().finite


def test_decompressing_a_bucket_overlaps_communicating_the_next(pipeline: Pipeline) -> None:
    decoding, communicating = threading.Event(), threading.Event()

    def decode() -> None:
        decoding.set()
        assert communicating.wait(PATIENCE_S)

    def communicate() -> None:
        communicating.set()
        assert decoding.wait(PATIENCE_S)

    log: list[str] = []
    pipeline.submit(0, Scripted("0", log, decode=decode), "bucket 0")
    pipeline.submit(1, Scripted("1", log, communicate=communicate), "bucket 1")
    assert pipeline.finish().finite


def test_one_non_finite_bucket_makes_the_step_non_finite(pipeline: Pipeline) -> None:
    log: list[str] = []
    pipeline.submit(0, Scripted("0", log, finite=lambda: False), "bucket 0")
    pipeline.submit(1, Scripted("1", log), "bucket 1")
    exchanged = pipeline.finish()
    assert (exchanged.finite, exchanged.nonfinite) == (False, (0,))
    pipeline.submit(0, Scripted("0", log), "bucket 0")
    assert pipeline.finish().finite is True


@pytest.mark.parametrize("phase", ["encode", "communicate", "decode"])
def test_an_error_surfaces_with_its_place_and_nothing_follows_it(
    pipeline: Pipeline, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next bucket is compressed when the failure has been met; only decompressing comes behind that."""
    log: list[str] = []
    gate, fail = threading.Event(), pipeline.fail

    def failed(error: BaseException) -> None:
        fail(error)
        gate.set()

    monkeypatch.setattr(pipeline, "fail", failed)
    if phase == "decode":
        gate.set()
    pipeline.submit(0, Scripted("0", log, **{phase: raises(ValueError("broken"))}), "step 3, bucket 0")
    pipeline.submit(1, Scripted("1", log, encode=lambda: gate.wait(PATIENCE_S)), "step 3, bucket 1")
    with pytest.raises(CommunicationError, match=r"rank 0, step 3, bucket 0.*ValueError: broken"):
        pipeline.finish()
    pipeline.submit(0, Scripted("later", log), "step 4, bucket 0")
    with pytest.raises(CommunicationError, match="broken"):
        pipeline.finish()
    assert not any("later" in entry for entry in log), "something was launched after a failure"
    if phase != "decode":
        assert "communicate 1" not in log


class Silent(Scripted):
    """It sends nothing, and notes in which thread it runs."""

    sends = False

    def __init__(self, name: str, log: list[str], is_light: bool, **phases: Callable[[], object]) -> None:
        super().__init__(name, log, **phases)
        self.is_light, self.threads = is_light, set[str]()

    def _run(self, phase: str) -> None:
        super()._run(phase)
        self.threads.add(threading.current_thread().name)


@pytest.mark.parametrize("is_light", [False, True])
def test_what_sends_nothing_waits_for_no_collective(pipeline: Pipeline, is_light: bool) -> None:
    """Bucket 0 is on its way until bucket 1 is through."""
    log: list[str] = []
    decoded, silent = threading.Event(), Silent("1", log, is_light)
    silent.phases["decode"] = decoded.set
    pipeline.submit(0, Scripted("0", log, communicate=lambda: decoded.wait(PATIENCE_S)), "bucket 0")
    pipeline.submit(2, Scripted("2", log), "bucket 2")
    pipeline.submit(1, silent, "bucket 1")
    exchanged = pipeline.finish()
    assert exchanged.finite
    assert "communicate 1" not in log
    assert log.index("communicate 0") < log.index("communicate 2")
    assert silent.threads == {threading.current_thread().name if is_light else "hvd-compress-kernels"}
    encode, communicate, decode = (getattr(exchanged.spans[1], phase) for phase in ("encode", "communicate", "decode"))
    assert 0 < encode[0] <= encode[1] == communicate[0] == communicate[1] <= decode[0]
    assert exchanged.spans[1].calls == ()


@pytest.mark.parametrize("phase", ["encode", "decode"])
@pytest.mark.parametrize("is_light", [False, True])
def test_an_error_in_what_sends_nothing_surfaces_with_its_place(pipeline: Pipeline, is_light: bool, phase: str) -> None:
    log: list[str] = []
    pipeline.submit(0, Silent("0", log, is_light, **{phase: raises(ValueError("broken"))}), "step 3, bucket 0")
    doing = "compressing" if phase == "encode" else "decompressing"
    with pytest.raises(CommunicationError, match=rf"rank 0, step 3, bucket 0.*, {doing}: ValueError: broken"):
        pipeline.finish()
    pipeline.submit(0, Scripted("later", log), "step 4, bucket 0")
    with pytest.raises(CommunicationError, match="broken"):
        pipeline.finish()
    assert not any("later" in entry for entry in log)


def test_errors_of_ours_keep_their_type(pipeline: Pipeline) -> None:
    log: list[str] = []
    pipeline.submit(0, Scripted("0", log, decode=raises(PayloadError("rank 2 sent nonsense"))), "step 3, bucket 0")
    with pytest.raises(PayloadError, match="rank 0, step 3, bucket 0, decompressing: rank 2 sent nonsense"):
        pipeline.finish()


def test_a_collective_that_does_not_return_ends_in_an_error(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = connected(TIMEOUT_S)
    pipeline.submit(0, Scripted("0", [], communicate=hanging), "step 3, bucket 0")
    passes(monkeypatch, hanging.begun)
    with pytest.raises(CommunicationError, match=r"rank 0, step 3, bucket 0: no answer within 0.3 s .*TIMEOUT_S"):
        pipeline.finish()


class Ends(Arrivals):
    """Who has waited for a while says so, and that is when what he waits for ends."""

    def __init__(self, hanging: Hanging) -> None:
        super().__init__()
        self._hanging, self.announced = hanging, []

    def announce(self, wait: int) -> None:
        self.announced.append(wait)
        self._hanging.go_on.set()


class Told(Arrivals):
    """What others have told is given here."""

    def __init__(self, absent: tuple[int, ...]) -> None:
        super().__init__()
        self._absent, self.announced = absent, []

    def announce(self, wait: int) -> None:
        self.announced.append(wait)

    def missing(self, wait: int) -> tuple[int, ...]:
        assert wait == self.announced[-1]
        return self._absent


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ((2,), "rank 2 has not arrived"),
        ((1, 3), "ranks 1, 3 have not arrived"),
        ((), "every rank has arrived, so the collective itself takes longer, on a slow network, or hangs"),
    ],
)
def test_a_timeout_names_who_has_not_arrived(
    absent: tuple[int, ...], words: str, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(absent)
    with pytest.raises(CommunicationError) as error:
        time_out(told, hanging, monkeypatch)
    text = str(error.value)
    assert words in text
    assert not absent or text.index("evaluates, saves or loads") < text.index("died"), "the commonest cause comes first"
    assert "raise HVD_COMPRESS_TIMEOUT_S" in text
    assert ("hvd.allreduce() within `if hvd.rank() == 0`" in text) == bool(absent)
    assert told.announced[-1] == 3, "connecting and an earlier step were the first two places"


def time_out(arrivals: Arrivals, hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pipeline wait in its second step for a collective that does not return."""
    pipeline = connected(TIMEOUT_S, arrivals)
    pipeline.finish()
    pipeline.submit(0, Scripted("0", [], communicate=hanging), "step 1, bucket 0")
    passes(monkeypatch, hanging.begun)
    pipeline.finish()


def test_where_nobody_can_tell_the_timeout_says_so(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommunicationError, match=r"another rank has not arrived \(this launcher offers no way"):
        time_out(Arrivals(), hanging, monkeypatch)


@pytest.mark.parametrize("broken", ["announce", "missing"])
def test_arrivals_that_fail_do_not_hide_the_timeout(
    broken: str, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(())
    monkeypatch.setattr(told, broken, lambda place: raises(OSError("the launcher is gone"))())
    with pytest.raises(CommunicationError, match=r"no answer within .*cannot be told: OSError: the launcher is gone"):
        time_out(told, hanging, monkeypatch)


def test_a_comparison_that_is_waited_for_is_a_wait_of_its_own(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rank that waits for it would be taken for one that has arrived in the step before."""
    told = Told((1,))
    pipeline = connected(TIMEOUT_S, told)
    pipeline.finish()
    wait = pipeline.begin(lambda engine: hanging(), "step 0, comparing times")
    passes(monkeypatch, hanging.begun)
    with pytest.raises(CommunicationError, match="rank 1 has not arrived"):
        wait()
    assert told.announced[-1] == 3


@pytest.mark.parametrize("stuck", ["announce", "missing"])
def test_a_launcher_that_does_not_answer_hides_no_timeout(
    stuck: str, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, gate = Told(()), threading.Event()
    monkeypatch.setattr(told, stuck, lambda wait: gate.wait(PATIENCE_S))
    monkeypatch.setattr("hvd_compress.session.pipeline.ANSWER_S", 0.1)
    with pytest.raises(CommunicationError, match=r"cannot be told: the launcher has not answered within 0\.1 s"):
        time_out(told, hanging, monkeypatch)
    gate.set()


def test_a_step_that_is_soon_over_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_compress.session.pipeline.ANNOUNCE_S", PATIENCE_S)
    told = Told(())
    pipeline = connected(4 * PATIENCE_S, told)
    pipeline.submit(0, Scripted("0", []), "step 0, bucket 0")
    pipeline.finish()
    assert told.announced == []


@pytest.mark.parametrize(("announce_s", "first_s"), [(1.0, 1.0), (9 * PATIENCE_S, PATIENCE_S)])
def test_others_are_told_of_a_wait_early_and_after_a_quarter_of_the_timeout_at_the_latest(
    announce_s: float, first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before their own timeouts are over, which begin at about the same time."""
    waited: list[float] = []
    monkeypatch.setattr(pipeline_module, "ANNOUNCE_S", announce_s)
    monkeypatch.setattr(pipeline_module, "wait", lambda futures, timeout: waited.append(timeout))
    pipeline = connected(4 * PATIENCE_S, Told(()))
    pipeline.submit(0, Scripted("0", []), "step 0, bucket 0")
    pipeline.finish()
    assert set(waited) == {first_s}


def test_a_handshake_that_does_not_return_ends_in_an_error(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(TIMEOUT_S)
    passes(monkeypatch, hanging.begun)
    with pytest.raises(CommunicationError, match="first step, handshake: no answer"):
        pipeline.connect(lambda: InProcessWorld(2).engine(0), hanging)


def test_the_handshake_may_take_what_is_measured_in_it_as_well(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when its time-out is over, while what is measured may still take as long again."""
    pipeline = Pipeline(TIMEOUT_S, ends := Ends(hanging))
    passes(monkeypatch, hanging.begun, 2 * TIMEOUT_S)
    pipeline.connect(lambda: InProcessWorld(1).engine(0), hanging, PATIENCE_S)
    assert ends.announced == [1]


@pytest.mark.parametrize(("timeout_s", "measuring_s"), [(threading.TIMEOUT_MAX, 3.0), (PATIENCE_S, 1e300)])
def test_a_timeout_of_for_ever_and_what_is_measured_may_be_waited_for(
    timeout_s: float, measuring_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "ANNOUNCE_S", 0.0)
    pipeline = Pipeline(timeout_s)
    pipeline.connect(lambda: InProcessWorld(1).engine(0), lambda _: time.sleep(0.3), measuring_s)
    pipeline.stop()


def test_settings_that_all_ranks_refuse_do_not_abandon_the_engine() -> None:
    """Every rank raises the same error and none is in a collective: each must live to say it."""
    engine = InProcessWorld(1).engine(0)
    abandoned: list[str] = []
    engine.abandon = lambda: abandoned.append("once")  # type: ignore[method-assign]
    pipeline = Pipeline(PATIENCE_S)
    with pytest.raises(ConfigError, match="rank 0, first step, handshake: ratios differ"):
        pipeline.connect(lambda: engine, lambda engine: raises(ConfigError("ratios differ"))())
    assert not abandoned
    with pytest.raises(CommunicationError, match="an earlier exchange failed: rank 0, first step, handshake: ratios"):
        pipeline.connect(lambda: engine, lambda engine: None)


def test_what_all_ranks_refuse_abandons_no_engine(pipeline: Pipeline) -> None:
    """What was begun is over first: another rank may wait for this one in it."""
    engine = pipeline._engine
    abandoned: list[str] = []
    engine.abandon = lambda: abandoned.append("once")  # type: ignore[method-assign]
    go_on = threading.Event()
    pipeline.begin(lambda engine: go_on.wait(PATIENCE_S), "holding the thread")
    agreed = pipeline.begin(lambda engine: "agreed", "comparing times")
    Timer(0.05, go_on.set).start()
    pipeline.refuse(ReplicaError("replicas differ"))
    pipeline.fail(ReplicaError("replicas differ"))
    assert agreed() == "agreed"
    assert not abandoned
    with pytest.raises(CommunicationError, match="an earlier exchange failed: replicas differ"):
        pipeline.begin(lambda engine: None, "anything")()


def test_a_failure_abandons_the_engine_once() -> None:
    pipeline = Pipeline(PATIENCE_S)
    world = InProcessWorld(1)
    engine = world.engine(0)
    abandoned: list[str] = []
    engine.abandon = lambda: abandoned.append("once")  # type: ignore[method-assign]
    pipeline.connect(lambda: engine, lambda engine: None)
    pipeline.submit(0, Scripted("0", [], communicate=raises(OSError("gone"))), "bucket 0")
    with pytest.raises(CommunicationError):
        pipeline.finish()
    pipeline.fail(RuntimeError("again"))
    assert abandoned == ["once"]


def test_threads_have_ended_when_the_pipeline_is_stopped(pipeline: Pipeline) -> None:
    """With all that they have to release: the end of the interpreter in the middle of that would be the process's."""
    local, released = threading.local(), list[str]()

    class Held:
        def __del__(self) -> None:
            time.sleep(0.1)
            released.append(threading.current_thread().name)

    pipeline._announce()
    assert pipeline._messenger is not None
    workers = (pipeline._kernels, pipeline._collectives, pipeline._messenger)
    for worker in workers:
        worker.submit(lambda: setattr(local, "held", Held())).result(PATIENCE_S)
    pipeline.stop()
    assert len(released) == len(workers)
    assert not any(worker._thread.is_alive() for worker in workers)


def test_stopping_waits_for_a_kernel_and_cancels_what_waits_behind_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter may not end in the middle of a kernel."""
    monkeypatch.setattr(pipeline_module, "LEFT_LIMIT_S", 0.05)
    abandoned: list[str] = []
    pipeline._engine.abandon = lambda: abandoned.append("once")  # type: ignore[method-assign]
    log: list[str] = []
    running, gate = threading.Event(), threading.Event()

    def encode() -> None:
        running.set()
        assert gate.wait(PATIENCE_S)

    pipeline.submit(0, Scripted("0", log, encode=encode), "bucket 0")
    pipeline.submit(1, Scripted("1", log), "bucket 1")
    assert running.wait(PATIENCE_S)
    stopping = threading.Thread(target=pipeline.stop)
    with caplog.at_level(logging.ERROR, "hvd_compress"):
        stopping.start()
        while pipeline._failure is None:  # until stop() has begun to wait for the kernel
            time.sleep(0.01)
    gate.set()
    stopping.join(PATIENCE_S)
    assert not pipeline._kernels._thread.is_alive()
    assert "encode 1" not in log
    assert not any("communicate" in entry for entry in log), "something was launched after the end"
    assert abandoned == ["once"]
    assert "while gradients were exchanged, and not all ranks take part" in caplog.text


def test_what_has_left_is_exchanged_before_a_rank_leaves(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    """Others wait for it: a program may end behind a backward pass, by an error or not, on all ranks."""
    pipeline._engine.abandon = lambda: pytest.fail("abandoned")  # type: ignore[method-assign]
    log: list[str] = []
    begun, gate = threading.Event(), threading.Event()

    def communicate() -> None:
        begun.set()
        assert gate.wait(PATIENCE_S)

    pipeline.submit(0, Scripted("0", log, communicate=communicate), "bucket 0")
    pipeline.submit(1, Scripted("1", log), "bucket 1")
    pipeline.submit(3, Scripted("3", log), "bucket 3")  # which waits for bucket 2, on all ranks
    assert begun.wait(PATIENCE_S)
    leaving = threading.Thread(target=pipeline.stop)
    leaving.start()
    gate.set()
    leaving.join(PATIENCE_S)
    assert [entry for entry in log if "communicate" in entry] == ["communicate 0", "communicate 1"]
    assert not any(worker._thread.is_alive() for worker in (pipeline._kernels, pipeline._collectives))
    assert not pipeline.failed
    assert caplog.text == ""


def test_threads_end_also_where_all_ranks_have_refused_the_settings() -> None:
    pipeline = Pipeline(PATIENCE_S)
    with pytest.raises(ConfigError):
        pipeline.connect(lambda: InProcessWorld(1).engine(0), lambda _: raises(ConfigError("ratios differ"))())
    pipeline.stop()
    assert not any(worker._thread.is_alive() for worker in (pipeline._kernels, pipeline._collectives))


def test_an_interrupt_in_the_first_step_leaves_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be abandoned before there is an engine; the thread that makes one may hang."""
    gate, left = threading.Event(), list[str]()
    monkeypatch.setattr(pipeline_module, "fail_at_exit", lambda abort: left.append("once"))
    pipeline = Pipeline(PATIENCE_S)

    def connect() -> Engine:
        assert gate.wait(PATIENCE_S)
        return InProcessWorld(1).engine(0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline_module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.connect(connect, lambda _: None)
    assert left == ["once"]
    pipeline.stop()
    gate.set()


def test_what_all_ranks_have_begun_is_done_before_a_rank_leaves(pipeline: Pipeline) -> None:
    """An agreement that nobody has waited for yet: without this rank's part the others would hang in it."""
    begun, go_on, done = threading.Event(), threading.Event(), []

    def agreement(engine: Engine) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        done.append(engine.rank)

    pipeline.begin(agreement, "comparing times")
    assert begun.wait(PATIENCE_S)
    leaving = threading.Thread(target=pipeline.stop)
    leaving.start()
    leaving.join(0.05)
    assert leaving.is_alive()
    go_on.set()
    leaving.join(PATIENCE_S)
    assert not leaving.is_alive()
    assert done == [0]


def test_a_collective_behind_the_last_bucket_belongs_to_no_step(pipeline: Pipeline) -> None:
    """And the step does not wait for it."""
    log: list[str] = []
    gate = threading.Event()

    def agreement(engine: Engine) -> str:
        log.append("agreement")
        with engine.aside() as calls:
            engine.allreduce(torch.zeros(3))
            assert gate.wait(PATIENCE_S)
            return f"{len(calls)} call"

    for number in (1, 0):
        sends = lambda: pipeline._engine.allreduce(torch.zeros(5))  # noqa: E731
        pipeline.submit(number, Scripted(str(number), log, communicate=sends), f"bucket {number}")
    agreed = pipeline.begin(agreement, "comparing times")
    exchanged = pipeline.finish()
    gate.set()
    assert agreed() == "1 call"
    assert [entry for entry in log if "encode" not in entry and "decode" not in entry] == [
        "communicate 0",
        "communicate 1",
        "agreement",
    ]
    assert [[call.tensor_bytes for call in spans.calls] for spans in exchanged.spans] == [[20], [20]]


def test_behind_a_bucket_that_fails_nothing_is_launched(pipeline: Pipeline) -> None:
    log: list[str] = []
    gate = threading.Event()
    pipeline.submit(0, Scripted("0", log, encode=lambda: gate.wait(PATIENCE_S), communicate=raises(ValueError())), "0")
    agreed = pipeline.begin(lambda engine: log.append("agreement"), "comparing times")
    gate.set()
    with pytest.raises(CommunicationError):
        pipeline.finish()
    with pytest.raises(CommunicationError, match=r"comparing times.*an earlier exchange failed"):
        agreed()
    assert "agreement" not in log


def test_a_bucket_that_failed_before_is_what_finish_tells_of(pipeline: Pipeline) -> None:
    """Not what was begun behind it; nor that a bucket is missing, as none is taken after a failure."""
    log: list[str] = []
    pipeline.submit(1, Scripted("1", log, encode=raises(PayloadError("broken"))), "bucket 1")
    pipeline.submit(0, Scripted("0", log), "bucket 0")
    with pytest.raises(PayloadError):
        pipeline._communicated[1].result(PATIENCE_S)
    pipeline.submit(2, Scripted("2", log), "bucket 2")
    pipeline.begin(lambda engine: log.append("agreement"), "comparing times")
    with pytest.raises(PayloadError, match=r"bucket 1, compressing: broken"):
        pipeline.finish()


def test_after_a_collective_that_failed_nothing_is_launched(pipeline: Pipeline) -> None:
    """Ranks would disagree on which comes next, long before anybody waits for that one."""
    log: list[str] = []
    pipeline.begin(raises_for_engine, "comparing times")
    pipeline.submit(0, Scripted("0", log), "bucket 0")
    with pytest.raises(CommunicationError, match=r"earlier exchange failed: .*comparing times.*: out of luck"):
        pipeline.finish()
    assert "communicate 0" not in log


def raises_for_engine(engine: Engine) -> None:
    raise ValueError("out of luck")


def test_a_time_out_tells_what_is_under_way_and_not_only_what_waits_for_it(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = connected(TIMEOUT_S)
    pipeline.begin(hanging, "step 3, comparing times")
    pipeline.submit(0, Scripted("0", []), "step 4, bucket 0")
    passes(monkeypatch, hanging.begun)
    with pytest.raises(CommunicationError, match=r"step 4, bucket 0: no answer .* \(rank 0, step 3, comparing times\)"):
        pipeline.finish()


def test_what_is_told_of_a_step_is_how_long_its_phases_took_and_when_ranks_met() -> None:
    spans = PhaseSpans((1.0, 1.5), (2.0, 4.0), (5.0, 5.25), ())
    assert (spans.compress_s, spans.communicate_s, spans.decompress_s) == (0.5, 2.0, 0.25)
