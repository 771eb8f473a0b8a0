"""Waits for other ranks: whom a timeout names, and whom a rank that waits tells of it."""

from __future__ import annotations

import threading
import time

import pytest

from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.errors import CommunicationError
from hvd_compress.session import waiting
from hvd_compress.session.pipeline import Pipeline
from tests.unit.session.scripted import PATIENCE_S, TIMEOUT_S, Hanging, Scripted, connected, passes, raises


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
    monkeypatch.setattr(waiting, "ANSWER_S", 0.1)
    with pytest.raises(CommunicationError, match=r"cannot be told: the launcher has not answered within 0\.1 s"):
        time_out(told, hanging, monkeypatch)
    gate.set()


def test_a_step_that_is_soon_over_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ANNOUNCE_S", PATIENCE_S)
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
    monkeypatch.setattr(waiting, "ANNOUNCE_S", announce_s)
    monkeypatch.setattr(waiting, "wait", lambda futures, timeout: waited.append(timeout))
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
    monkeypatch.setattr(waiting, "ANNOUNCE_S", 0.0)
    pipeline = Pipeline(timeout_s)
    pipeline.connect(lambda: InProcessWorld(1).engine(0), lambda _: time.sleep(0.3), measuring_s)
    pipeline.stop()


def test_a_time_out_tells_what_is_under_way_and_not_only_what_waits_for_it(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = connected(TIMEOUT_S)
    pipeline.begin(hanging, "step 3, comparing times")
    pipeline.submit(0, Scripted("0", []), "step 4, bucket 0")
    passes(monkeypatch, hanging.begun)
    with pytest.raises(CommunicationError, match=r"step 4, bucket 0: no answer .* \(rank 0, step 3, comparing times\)"):
        pipeline.finish()
