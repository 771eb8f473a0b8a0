"""Order and overlap of the pipeline's phases, and errors in them.

What must overlap waits for each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pytest
import torch

from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, PayloadError
from hvd_compress.session.pipeline import Pipeline
from tests.unit.session.scripted import PATIENCE_S, Scripted, raises


def test_on_the_host_an_exchange_is_released_when_it_is_decoded(pipeline: Pipeline) -> None:
    """So payloads of a step's buckets do not add up."""
    exchanges = [Scripted("0", []), Scripted("1", [])]
    first, alive = weakref.ref(exchanges[0]), []
    exchanges[1].phases = {"decode": lambda: alive.append(first())}
    while exchanges:
        pipeline.submit(2 - len(exchanges), exchanges.pop(0), "a bucket")
    pipeline.finish()
    assert alive == [None]


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
    gate, fail = threading.Event(), pipeline._failure.fail

    def failed(error: BaseException) -> None:
        fail(error)
        gate.set()

    monkeypatch.setattr(pipeline._failure, "fail", failed)
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


def test_what_is_told_of_a_step_is_how_long_its_phases_took_and_when_ranks_met() -> None:
    spans = PhaseSpans((1.0, 1.5), (2.0, 4.0), (5.0, 5.25), ())
    assert (spans.compress_s, spans.communicate_s, spans.decompress_s) == (0.5, 2.0, 0.25)
