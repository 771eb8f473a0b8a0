"""The controller between steps, with times and gains that are made up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hvd_compress.controller.controller import Controller, Suspicion
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy, Round
from hvd_compress.controller.report import Agreed, Look, Pending, Timing, Took
from hvd_compress.controller.sights import Sight, Workers
from hvd_compress.controller.watch import COMPARED, SHORT_WINDOW, WINDOW
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.events.history import History
from tests.controlled import known_bucket

GOAL = AutoRatio(0.5, low=0.01)
RANKS = 4

pytestmark = pytest.mark.usefixtures("clock")


def train(controller: Controller, steepness: float, steps: int, changed: bool = False, beside: int = 0) -> str:
    """Return why the network is to be measured anew, if it is; `steepness` says how much few elements hold.

    Each exchange takes 10 ms, in whichever way; or, if that has `changed`, 40 ms as soon as another ratio is sent.
    While ranks agree on a window they take as many steps as are `beside`: those of the next, if nothing changes.
    """
    since, look, before, seconds = 0, None, controller.ratios(), 0.01
    for step in range(steps):
        ratios = controller.looking
        if ratios is not None:
            gains = (1 - math.exp(-steepness * ratio**0.5) for ratio in (*ratios, *controller.ratios()))
            look = Look((tuple(gains),))
        seconds = 0.04 if changed and controller.ratios() != before else seconds
        controller.record([Timing(0.004, 0.005, 0.001)], 0.1, look)
        since += 1
        if controller.due:
            controller.report()
            stood, later = (controller.candidates(), controller.ratios()), beside * controller.settled
            for _ in range(later):
                controller.record([Timing(0.004, 0.005, 0.001)], 0.1)
            seen, noted = look.gains if look else (), ((),) * RANKS
            agreed = Agreed(((seconds,),) * since, ((0.005,),) * since, 0.1, 1e-4, Took(), seen, 0.0, noted)
            if suspicion := controller.take(step, agreed):
                return suspicion.reason
            since, look = later * (stood == (controller.candidates(), controller.ratios())), None
            assert len(controller._pending.steps) == since
    return ""


@pytest.mark.parametrize("beside", [0, 2])
@pytest.mark.parametrize(("steepness", "rounds"), [(6.5, False), (2.0, True)])
def test_a_ratio_that_is_similar_travels_as_before_without_trials(steepness: float, rounds: bool, beside: int) -> None:
    ways = (Path("allgather", "ring"), Path("star", "ring"))
    network = Network(Formulas(1e-4, 1e-9, RANKS))
    controller = Controller([known_bucket(100_000, GOAL.start, ways)], network, Policy(), History(), GOAL)
    assert train(controller, 8.0, 60) == ""
    assert controller.settled
    before, known = controller.ratios()[0], len(controller.history)
    assert train(controller, steepness, 60, beside=beside) == ""
    assert controller.settled
    assert controller.ratios()[0] > before
    begun = [event for event in list(controller.history)[known:] if event.kind == "begin"]
    assert bool(begun) == rounds


def test_a_network_that_changes_just_when_another_ratio_is_sent_is_seen() -> None:
    ways = (Path("allgather", "ring"), Path("star", "ring"))
    network = Network(Formulas(1e-4, 1e-9, RANKS))
    controller = Controller([known_bucket(100_000, GOAL.start, ways)], network, Policy(), History(), GOAL)
    assert train(controller, 8.0, 60) == ""
    assert "took 40.00 ms instead of" in train(controller, 6.5, 60, changed=True)


def _with_var(var_s: float, changed_s: float = 0.0, allgather_s: float = 2000.0) -> tuple[str, list[str]]:
    """Return why the network was measured anew, if it was, and what was used; VAR takes `var_s`, STAR 10 seconds.

    With `changed_s` every exchange takes as long, from the third step with VAR on.
    """
    way = Path("star", "ring")
    bucket = known_bucket(100_000, 0.01, (way, Path("allgather", "ring")))

    def body(engine: InProcessEngine) -> tuple[str, list[str]]:
        network, workers = Network(Formulas(1e-4, 1e-9, 2)), Workers((True,), 2)
        controller = Controller([bucket], network, Policy(), History(), workers=workers)
        used: list[str] = []
        for step in range(80):
            scheme = controller.candidates()[0].scheme
            used.append(scheme)
            seconds = var_s if scheme == "var" else 10.0
            root = 0 if scheme == "var" else step % 2  # the first rank holds all
            sent, held = (0.4 if root == 0 else 0.0, 1.2) if engine.rank == 0 else (0.0, 0.0)
            seconds = allgather_s if scheme == "allgather" else seconds
            if changed_s and used.count("var") > 2:
                seconds = changed_s
            sight = Sight(root, sent, held - sent, seconds)
            controller.saw([sight if watched else None for watched in controller.watched()])
            controller.record([Timing(0.0, seconds, 0.0)], 1000.0)
            if controller.due and (suspicion := controller.take(step, controller.report()(engine))):
                return suspicion.reason, used
        return "", used

    return run_ranks(2, body)[0]


def test_what_var_takes_on_trial_is_no_drift_of_what_was_chosen() -> None:
    """It takes twice as long as STAR here, and would have the network measured anew."""
    drift, used = _with_var(20.0)
    assert drift == ""
    assert "var" in used


def test_var_is_not_taken_where_another_scheme_would_be_faster_than_it() -> None:
    """It sends more than twice as much in steps that are 1 % longer; but then AR-Topk should not be used at all."""
    for allgather_s, expected in ((14.0, "star"), (30.0, "var")):
        drift, used = _with_var(20.0, allgather_s=allgather_s)
        assert drift == ""
        assert "var" in used
        assert used[-1] == expected


def test_a_network_that_breaks_down_is_seen_while_var_is_on_trial() -> None:
    drift, used = _with_var(11.0, changed_s=100.0)
    assert "ms instead of 10000.00" in drift
    assert "var" in used


def rounds(times: list[float], agree_s: list[float]) -> list[str]:
    """Return what the agreements of a round say, in which all steps of one take as long."""
    ways = (Path("allgather", "ring"), Path("star", "ring"))
    bucket = known_bucket(100_000, 0.01, ways)
    policy = Policy(Round(margin=1e6, near=2.0))
    controller = Controller([bucket], Network(Formulas(1e-3, 1e-9, RANKS)), policy, History())
    found = []
    for seconds, agreed_s in zip(times, agree_s, strict=True):
        steps = 0
        while not controller.due:
            controller.record([Timing(0.0, seconds, 0.0)], 0.2)
            steps += 1
        controller.report()
        # The ways differ by more than can be told apart, or there would be no final.
        rows = tuple((seconds * (1.0 + 0.1 * (step % 2)),) for step in range(steps))
        agreed = Agreed(rows, ((0.0,),) * steps, 0.2, agreed_s, Took(), told=((),) * RANKS)
        suspicion = controller.take(0, agreed)
        found.append(suspicion.reason if suspicion else "")
    return found


def test_a_network_that_changes_within_a_round_is_measured_anew() -> None:
    calm = [0.001] * 4
    assert rounds([0.1, 0.1, 0.1, 0.1], calm) == [""] * 4
    assert rounds([0.1, 0.3], calm[:2]) == ["", "bucket 0 took another time in a final"]
    told = rounds([0.1, 0.1, 0.1, 0.1], [0.001, 0.001, 0.060, 0.060])
    assert told[:2] == [""] * 2
    assert any("to agree instead of 1.00" in words for words in told[2:])


@pytest.mark.parametrize(("longer", "stands"), [(1.2, True), (4.0, False)])
def test_what_agreeing_took_for_no_reason_leaves_choices_as_they_are(
    longer: float, stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is measured, its latency found to be `longer`, and only where that is much ways are tried again."""
    ways = (Path("allgather", "ring"), Path("star", "ring"))
    network = Network(Formulas(1e-3, 1e-9, RANKS))
    controller = Controller([known_bucket(100_000, 0.01, ways)], network, Policy(), History())

    def window(agree_s: float, beside: int = 0) -> Suspicion | None:
        while not controller.due:
            controller.record([Timing(0.0, 0.01, 0.0)], 0.1)
        steps = len(controller.report().keywords["steps"])
        for _ in range(beside):
            controller.record([Timing(0.0, 0.01, 0.0)], 0.1)
        rows = ((0.01,),) * steps
        return controller.take(0, Agreed(rows, rows, 0.1, agree_s, Took(), told=((),) * RANKS))

    while not controller.settled:
        assert window(0.001) is None
    assert [window(0.001) for _ in range(4)] == [None] * 4
    suspicion = window(0.010, beside=2)
    assert suspicion is not None
    assert suspicion.reason == "ranks took 10.00 ms to agree instead of 1.00"
    monkeypatch.setattr(Network, "remeasured", lambda self, _: self if stands else replace(self, latency=longer))
    known = len(controller.history)
    (engine,) = run_ranks(1, lambda engine: engine)
    controller.remeasure(0, suspicion, engine)
    events = list(controller.history)[known:]
    assert [event.kind for event in events] == (["noise"] if stands else ["network", "begin"])
    assert len(controller._pending.steps) == (2 if stands else 0)  # those that ranks took while they agreed
    assert ("but the network is what it was" in events[0].reason) == stands
    assert controller.settled == stands
    if stands:
        assert [window(0.010) for _ in range(3)] == [None] * 3  # now that is known to be noise


@pytest.mark.parametrize(("step_s", "length"), [(0.1, WINDOW), (0.02, 25)])
def test_of_a_window_the_last_steps_are_told(step_s: float, length: int) -> None:
    """Half a second has 25 steps of 20 ms."""
    bucket = known_bucket(100_000, 0.01, (Path("star", "ring"),))
    controller = Controller([bucket], Network(Formulas(1e-3, 1e-9, RANKS)), Policy(), History())
    lengths = []
    for _ in range(8):
        steps = 0
        while not controller.due:
            controller.record([Timing(0.0, 0.01, 0.0)], step_s)
            steps += 1
        rows = ((0.01,),) * len(controller.report().keywords["steps"])
        assert len(rows) == min(steps, COMPARED)
        controller.take(0, Agreed(rows, rows, step_s, 0.1, Took(), told=((),) * RANKS))
        lengths.append(steps)
    assert lengths[0] == 1  # its only trial
    assert lengths[1] == SHORT_WINDOW  # until it is known what is usual
    assert lengths[2:] == [length] * 6


def test_the_rest_of_a_step_is_that_of_the_steps_that_are_compared() -> None:
    """Of a long window the last are compared, which here take ten times as long."""
    pending = Pending()
    for seconds in (0.1, 0.1, 1.0, 1.0, 1.0):
        pending.add([Timing(0.0, seconds / 2, 0.0)], seconds, None)
    assert pending.step_s(3) == 1.0
    assert pending.step_s(5) == pytest.approx(0.64)
