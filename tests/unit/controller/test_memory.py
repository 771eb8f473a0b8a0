"""Networks that come back: made-up times of two networks, between which a job goes."""

from __future__ import annotations

import math

import pytest

from hvd_compress.controller import watch
from hvd_compress.controller.chooser import Choice
from hvd_compress.controller.controller import Controller
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.memory import MOST, Memory, Met
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.report import Look, Timing
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld
from hvd_compress.events.history import Event, History
from tests.controlled import known_bucket

COSTS = Formulas(1e-4, 1e-9, 4)
ALLGATHER, STAR = Path("allgather", "ring"), Path("star", "ring")
FAST, SLOW = {ALLGATHER: 0.010, STAR: 0.014}, {ALLGATHER: 0.200, STAR: 0.100}

pytestmark = pytest.mark.usefixtures("clock")


class Job:
    """A job of one rank, whose exchanges take what `times` say, on a network that reads as `factor` says.

    All its windows are short, so that steps are few.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        engine: InProcessEngine,
        buckets: int = 1,
        goal: AutoRatio | None = None,
        ways: tuple[Path, ...] = (ALLGATHER, STAR),
    ) -> None:
        self._engine, self._step, self._factor = engine, 0, 1.0
        self.measured = 0  # how often the network was
        monkeypatch.setattr(watch, "WINDOW", watch.SHORT_WINDOW)
        monkeypatch.setattr(Network, "remeasured", lambda known, _: self._found(known))
        bucket = known_bucket(100_000, goal.start if goal is not None else 0.01, ways)
        self._controller = Controller([bucket] * buckets, Network(COSTS), Policy(), History(), goal)

    def train(
        self,
        times: dict[Path, float],
        factor: float,
        *others: dict[Path, float],
        steps: int = 60,
        steepness: float = 8.0,
    ) -> list[Event]:
        """Train for some steps; return what was decided.

        Args:
            others: times of the buckets after the first.
            steepness: says how much few elements hold, where the ratio is to be chosen.
        """
        controller, self._factor, known = self._controller, factor, len(self._controller.history)
        for _ in range(steps):
            self._step += 1
            ways, look, ratios = controller.candidates(), None, controller.looking
            if ratios is not None:
                look = Look((tuple(1 - math.exp(-steepness * r**0.5) for r in (*ratios, *controller.ratios())),))
            timings = [Timing(0.0, own[way], 0.0) for own, way in zip((times, *others), ways, strict=True)]
            controller.record(timings, 0.3, look)
            if controller.due and (suspicion := controller.take(self._step, controller.report()(self._engine))):
                controller.remeasure(self._step, suspicion, self._engine)
        return [event for event in list(controller.history)[known:] if event.kind in ("begin", "choice")]

    def _found(self, known: Network) -> Network:
        self.measured += 1
        found = Network(COSTS, self._factor, self._factor)
        return known if found.like(known) else found

    @property
    def noise(self) -> bool:
        """Whether the network was measured, and found to be what it was."""
        return any(event.kind == "noise" for event in self._controller.history)

    @property
    def sent(self) -> set[tuple[str, str, float]]:
        """Kinds of events of what was used, with the way and the ratio."""
        events = (event for event in self._controller.history if event.kind in ("choice", "window"))
        return {(event.kind, event.candidate, event.ratio) for event in events}

    @property
    def used(self) -> Path:
        return self._controller.choices()[0].candidate

    @property
    def ratio(self) -> float:
        return self._controller.ratios()[0]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    """One that has not begun."""
    return Job(monkeypatch, InProcessWorld(1).engine(0))


@pytest.fixture
def returning(job: Job) -> Job:
    """One that has been on the fast network, and is on the slow one."""
    job.train(FAST, 1.0)
    job.train(SLOW, 10.0)
    return job


def test_a_network_that_comes_back_is_travelled_as_before_without_trials(job: Job) -> None:
    job.train(FAST, 1.0)
    assert job.used == ALLGATHER
    assert [event.kind for event in job.train(SLOW, 10.0)] == ["begin", "choice"]
    assert job.used == STAR
    (choice,) = job.train(FAST, 1.2)
    assert choice.kind == "choice"
    assert choice.reason.startswith("best when the network was like this, before step 6")
    assert job.used == ALLGATHER
    assert [event.kind for event in job.train(SLOW, 8.5)] == ["choice"]
    assert job.used == STAR


def test_what_travels_without_compression_is_logged_as_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by trials, watched, and recalled."""
    dense = Path("dense", "ring")
    job = Job(monkeypatch, InProcessWorld(1).engine(0), ways=(dense, STAR))
    fast, slow = {dense: 0.010, STAR: 0.014}, {dense: 0.200, STAR: 0.100}
    job.train(fast, 1.0)
    job.train(slow, 10.0)
    (choice,) = job.train(fast, 1.2)
    assert choice.reason.startswith("best when the network was like this")
    assert (choice.candidate, choice.ratio) == ("dense-ring", 1.0)
    whole, compressed = ("dense-ring", 1.0), ("star-ring", 0.01)
    assert job.sent == {(kind, *way) for kind in ("choice", "window") for way in (whole, compressed)}


def test_what_is_recalled_is_given_up_where_it_no_longer_takes_what_it_took(returning: Job) -> None:
    seen = returning.train({ALLGATHER: 0.030, STAR: 0.020}, 1.0)
    assert [event.kind for event in seen] == ["choice", "begin", "choice"]
    assert returning.used == STAR
    returning.train(SLOW, 10.0)
    assert [event.kind for event in returning.train({ALLGATHER: 0.030, STAR: 0.020}, 1.0)] == ["choice"]
    assert returning.used == STAR  # as it was tried at last


def test_a_recall_is_given_up_at_once_on_a_machine_that_sounded_false_alarms(returning: Job) -> None:
    noisy = {way: 1.4 * seconds for way, seconds in SLOW.items()}
    assert [event.kind for event in returning.train(noisy, 10.0)] == ["begin", "choice"]  # which changes nothing
    seen = returning.train({ALLGATHER: 0.020, STAR: 0.016}, 1.0)
    assert [event.kind for event in seen] == ["choice", "begin", "choice"]
    assert returning.used == STAR


def test_another_network_and_the_same_one_are_tried(job: Job) -> None:
    """Times that change on a network that reads as before are no reason to recall what they just left."""
    job.train(FAST, 1.0)
    assert job.train({ALLGATHER: 0.030, STAR: 0.020}, 1.0)[0].kind == "begin"
    assert job.train(SLOW, 10.0)[0].kind == "begin"
    assert job.train({ALLGATHER: 0.050, STAR: 0.060}, 3.0)[0].kind == "begin"


def test_a_recall_that_proved_false_is_not_repeated(returning: Job) -> None:
    """Readings that differ by more than networks that are alike, but are both like what is remembered."""
    other = {ALLGATHER: 0.030, STAR: 0.020}
    assert [event.kind for event in returning.train(other, 0.75, steps=5)] == ["choice"]
    assert [event.kind for event in returning.train(other, 1.3)] == ["begin", "choice"]
    assert returning.used == STAR


def test_a_network_that_gets_worse_little_by_little_is_tried_anew(job: Job) -> None:
    """What is recalled stays as it was tried: else each return would be like the one before."""
    job.train(FAST, 1.0)
    job.train(SLOW, 20.0)
    kinds = []
    for factor in (1.35, 1.8, 2.4):
        seen = job.train({way: seconds * factor for way, seconds in FAST.items()}, factor)
        assert all(event.reason.count("best when") <= 1 for event in seen)
        kinds.append([event.kind for event in seen])
        assert [event.kind for event in job.train(SLOW, 20.0)] == ["choice"]
    assert kinds == [["choice"], ["begin", "choice"], ["choice"]]  # 2.4 is like 1.8


def test_each_bucket_is_recalled_as_it_travelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where one of them no longer takes what it took, that one is tried."""
    job = Job(monkeypatch, InProcessWorld(1).engine(0), buckets=2)
    job.train(FAST, 1.0, SLOW)
    job.train(SLOW, 10.0, FAST)
    seen = job.train(FAST, 1.0, SLOW)
    assert [(event.kind, event.bucket, event.candidate) for event in seen] == [
        ("choice", 0, str(ALLGATHER)),
        ("choice", 1, str(STAR)),
    ]
    seen = job.train(SLOW, 10.0, {ALLGATHER: 0.080, STAR: 0.090})
    kinds = [("choice", 0), ("choice", 1), ("begin", 1), ("choice", 1)]
    assert [(event.kind, event.bucket) for event in seen] == kinds
    assert [choice.candidate for choice in job._controller.choices()] == [STAR, ALLGATHER]


@pytest.mark.parametrize(("steepness", "kinds"), [(8.0, {"choice"}), (2.5, {"begin", "choice"})])
def test_what_sends_much_more_now_is_tried_anew(
    steepness: float, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gain of 0.5 is wanted; on the way back fewer or as many elements hold it."""
    job = Job(monkeypatch, InProcessWorld(1).engine(0), goal=AutoRatio(0.5, low=0.001))
    job.train(FAST, 1.0)
    before = job.ratio
    job.train(SLOW, 10.0)
    job.train(SLOW, 10.0, steepness=steepness, steps=120)
    assert (job.ratio > 2 * before) == (steepness < 8.0)
    assert {event.kind for event in job.train(FAST, 1.0, steepness=steepness)} == kinds


def test_what_sends_somewhat_more_now_is_recalled_with_times_that_are_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ways: they are compared with each other later."""
    job = Job(monkeypatch, InProcessWorld(1).engine(0), goal=AutoRatio(0.5, low=0.001))
    job.train(FAST, 1.0)
    before, ratio = dict(job._controller._courses[0].chooser.measured), job.ratio
    job.train(SLOW, 10.0)
    job.train(SLOW, 10.0, steepness=6.0, steps=120)
    assert 1.2 < job.ratio / ratio < 2
    assert [event.kind for event in job.train(FAST, 1.0, steepness=6.0)] == ["choice"]
    chooser = job._controller._courses[0].chooser
    factors = {way: taken / before[way] for way, taken in chooser.measured.items()}
    assert factors.keys() == before.keys()
    assert list(factors.values()) == pytest.approx([chooser.choice.seconds / 0.010] * 2)
    assert chooser.choice.seconds > 0.0101


def test_what_few_of_the_buckets_feel_is_no_matter_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """By time, longer and shorter: those that take what they took went over the same one."""
    for factor, small in ((2.0, FAST), (0.5, SLOW)):
        job = Job(monkeypatch, InProcessWorld(1).engine(0), buckets=3)
        job.train(small, 1.0, small, SLOW)
        odd = {way: factor * seconds for way, seconds in small.items()}
        job.train(odd, 1.0, small, SLOW, steps=8)
        assert job.noise
        assert job.measured == 0
        job.train(odd, 1.0, odd, {way: factor * seconds for way, seconds in SLOW.items()}, steps=8)
        assert job.measured > 0


def test_who_could_not_tell_does_not_deny_that_the_network_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty buckets of half a millisecond are odd from 0.3 ms on: 1.45 times as long is not."""
    job, small = Job(monkeypatch, InProcessWorld(1).engine(0), buckets=41), {ALLGATHER: 0.0005, STAR: 0.0006}
    job.train(FAST, 1.0, *[small] * 40)
    slower = [{way: 1.45 * seconds for way, seconds in times.items()} for times in (FAST, *[small] * 40)]
    job.train(slower[0], 1.0, *slower[1:], steps=16)
    assert job.measured > 0


def test_a_latency_that_may_have_changed_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of the buckets, by time, may be all that feel it."""
    monkeypatch.setattr(watch.Watch, "latency_known", False)
    job = Job(monkeypatch, InProcessWorld(1).engine(0), buckets=2)
    job.train(FAST, 1.0, SLOW)
    job.train({way: 2 * seconds for way, seconds in FAST.items()}, 1.0, SLOW, steps=8)
    assert job.measured > 0


def test_noise_begins_no_round_and_what_lasts_begins_one_for_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, InProcessWorld(1).engine(0), buckets=3)
    job.train(FAST, 1.0, FAST, FAST)
    longer = {way: 1.8 * seconds for way, seconds in FAST.items()}
    for _ in range(6):
        assert job.train(FAST, 1.0, longer, FAST, steps=5) == []
        assert job.train(FAST, 1.0, FAST, FAST, steps=20) == []
    assert job.noise
    seen = job.train(FAST, 1.0, {ALLGATHER: 0.018, STAR: 0.014}, FAST)
    assert [(event.kind, event.bucket, event.candidate) for event in seen] == [
        ("begin", 1, ""),
        ("choice", 1, str(STAR)),
    ]
    assert "bucket 1 by allgather-ring took 18.00 ms instead of 10.00" in seen[0].reason


def test_a_final_that_takes_another_time_on_the_same_network_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    near, later = {ALLGATHER: 0.100, STAR: 0.105}, {ALLGATHER: 0.200, STAR: 0.190}
    for factor, kinds in ((1.0, ["choice"]), (2.0, ["begin", "choice"])):
        job = Job(monkeypatch, InProcessWorld(1).engine(0))
        job.train(near, 1.0, steps=2)  # the trials, before the final
        assert [event.kind for event in job.train(later, factor)] == kinds
        assert job.used == STAR


def test_networks_are_alike_by_both_factors() -> None:
    network = Network(COSTS, 2.0, 5.0)
    assert network.like(Network(COSTS, 1.5, 6.9))
    assert not network.like(Network(COSTS, 1.4, 5.0))
    assert not network.like(Network(COSTS, 2.0, 7.1))


def test_what_is_remembered_of_a_network_is_the_last() -> None:
    memory = Memory()
    for step in range(MOST + 1):
        memory.keep(Met(step, Network(COSTS, 2.0**step), 0.01, STAR, Choice(STAR, 1.0, 1.0, ""), {}))
    assert memory.recall(Network(COSTS, 1.0)) is None
    for step in (7, 20):
        memory.tried()
        memory.keep(Met(step, Network(COSTS, 3.9), 0.01, STAR, Choice(STAR, 1.0, 1.0, ""), {}))
        found = memory.recall(Network(COSTS, 4.0))
        assert found is not None
        assert found.step == step
    assert memory.recall(Network(COSTS, 2.0)) is not None
