"""Ranks compare their steps, and notice another network together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.events.history import History
from hvd_compress.services.agreement import Agreed
from hvd_compress.services.base import BucketMetrics, SeenStep, StepMoments
from hvd_compress.services.detector import THRESHOLD
from hvd_compress.services.watch import Watch


@dataclass
class Policy:
    """Counts what it notes; by `skips` some steps are not to be compared."""

    skips: Callable[[int], bool] = lambda note: False
    every: int = 2
    is_awaited: bool = False
    noted: int = 0
    compared: list[tuple[int, list[int], list[float], list[float]]] = field(default_factory=list)
    alarms: list[int] = field(default_factory=list)

    def note(self, metrics: Sequence[BucketMetrics]) -> int | None:
        self.noted += 1
        return None if self.skips(self.noted) else self.noted

    def tell(self, notes: Sequence[int]) -> Sequence[float]:
        return [float(sum(notes))]

    def on_steps(self, step: int, agreed: Agreed, notes: Sequence[int]) -> float:
        times = [each.exchanging_s for each in agreed.steps]
        self.compared.append((step, list(notes), times, [told for (told,) in agreed.told]))
        return min(times)

    def on_alarm(self, step: int) -> None:
        self.alarms.append(step)


def launched_by(engine: Engine) -> Callable[..., Callable[[], object]]:
    def launch(call: Callable[[Engine], object], label: str, measuring_s: float = 0.0) -> Callable[[], object]:
        found = call(engine)
        return lambda: found

    return launch


def seen(step: int, exchanging_s: float, is_regular: bool = True, held_back: bool = False) -> SeenStep:
    moments = StepMoments(0.0, 0.0, 0.0, exchanging_s, held_back)
    return SeenStep(step, (), moments, finite=True, is_regular=is_regular)


def watched(steps: Sequence[Callable[[int], SeenStep]], policy: Callable[[], Policy] = Policy) -> list[tuple]:
    """Return by rank the policy, the kinds of events and the threshold, after steps that each rank sees its own way."""

    def body(engine: InProcessEngine) -> tuple:
        own, history = policy(), History()
        watch = Watch(own, history)
        watch.begin(launched_by(engine))  # type: ignore[arg-type]
        for step, of_rank in enumerate(steps):
            watch.launched(step)
            watch.exchanged(of_rank(engine.rank))
        return own, [event.kind for event in history], watch.alarm.threshold

    return run_ranks(2, body)


def taking(seconds: Sequence[float]) -> list[Callable[[int], SeenStep]]:
    """Return steps in which the second rank waits a second longer."""
    return [lambda rank, step=step, taken_s=taken_s: seen(step, taken_s + rank) for step, taken_s in enumerate(seconds)]


def test_steps_are_compared_after_the_first_and_taken_a_step_later() -> None:
    (first, kinds, _), (second, *_) = watched(taking([9.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    assert first.compared == second.compared
    assert [(step, notes) for step, notes, *_ in first.compared] == [(4, [1, 2]), (6, [3, 4])]
    assert first.compared[0][2:] == ([0.1, 0.2], [3.0, 3.0]), "of the rank that waited for nobody"
    assert kinds == [] == first.alarms


def test_steps_that_are_not_alike_are_left_out() -> None:
    """Irregular ones, of which the policy knows nothing, those of a profile, and those that it does not want."""
    steps = taking([9.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    steps[1] = lambda rank: seen(1, 5.0, is_regular=False)
    steps[2] = lambda rank: seen(2, 5.0, held_back=True)
    (policy, *_), _ = watched(steps, lambda: Policy(skips=lambda note: note == 1))
    assert policy.compared[0][1:3] == ([2, 3], [0.4, 0.5])


def test_nothing_is_watched_where_the_policy_says_so() -> None:
    (policy, *_), _ = watched(taking([0.1] * 6), lambda: Policy(every=0))
    assert policy.noted == 0


def test_another_network_is_noticed_once_by_all_and_less_easily_after_that() -> None:
    found = watched(taking([0.1] * 12 + [1.0] * 20))
    (policy, kinds, threshold), (other, *_) = found
    assert policy.alarms == other.alarms
    assert len(policy.alarms) == 1
    assert policy.alarms[0] > 12
    assert kinds == ["network"]
    assert threshold == 2 * THRESHOLD


def test_what_was_recorded_before_an_alarm_is_of_another_network() -> None:
    (policy, *_), _ = watched(taking([0.1] * 12 + [1.0] * 20))
    (alarm,) = policy.alarms
    after = [(step, notes) for step, notes, *_ in policy.compared if step > alarm]
    assert after
    assert all(note > alarm for _, notes in after for note in notes)
