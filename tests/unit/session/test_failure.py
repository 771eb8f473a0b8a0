"""What ends exchanges: refusals of all ranks, failures, and a rank that leaves."""

from __future__ import annotations

import logging
import threading
import time
from threading import Timer

import pytest

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.errors import CommunicationError, ConfigError, ReplicaError
from hvd_compress.session import pipeline as pipeline_module
from hvd_compress.session import waiting
from hvd_compress.session.pipeline import Pipeline
from tests.unit.session.scripted import PATIENCE_S, Scripted, raises


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

    pipeline._waits.announce()
    assert pipeline._waits._messenger is not None
    workers = (pipeline._kernels, pipeline._collectives, pipeline._waits._messenger)
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
        while not pipeline.failed:  # until stop() has begun to wait for the kernel
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

    monkeypatch.setattr(waiting, "wait", interrupted)
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
