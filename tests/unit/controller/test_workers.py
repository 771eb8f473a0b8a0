"""STAR or VAR, from figures that are made up."""

from __future__ import annotations

import pytest

from hvd_compress.controller.sights import Sight, Workers
from hvd_compress.controller.workers import STAR, VAR, Step, WorkerChooser, WorkerPolicy
from hvd_compress.cost.paths import Path

RANKS = 4
NONE_STARVED = tuple(range(RANKS))
STAR_RING = Path("star", "ring")


def seen(used: str, number: int, gains: dict[str, float], var_s: float = 0.01, roots=NONE_STARVED) -> Step:
    """Rank 0 holds most, and a root alone sends, rank 0 most; `roots` is whose indices VAR uses, in turn."""
    root = number % RANKS if used == STAR else roots[number % len(roots)]
    times = RANKS if used == VAR else 10 if root == 0 else 2
    sent = tuple(times * gains[used] if rank == root else 0.0 for rank in range(RANKS))
    return Step(root, sent, (RANKS - 1.5, 0.5, 0.5, 0.5), var_s if used == VAR else 0.01)


def sights(used: str, step: int, seconds: float = 0.01) -> tuple[Sight, Sight]:
    """Of two ranks: the first holds all. STAR sends a sixth of it, hearing each rank in turn, and VAR a third."""
    root = step % 2 if used == STAR else 0
    sent = 0.4 if root == 0 else 0.0
    return Sight(root, sent, 1.2 - sent, seconds), Sight(root, 0.0, 0.0, seconds)


class Pair:
    """Two ranks that watch buckets. Of bucket 2 they hold as much, the others the first of them holds alone."""

    def __init__(self, open_: tuple[bool, ...]) -> None:
        self.ranks = Workers(open_, 2), Workers(open_, 2)

    def saw(self, step: int, *numbers: int) -> None:
        """Both ranks see a step of these buckets."""
        way = self.ranks[0].way
        for rank, workers in enumerate(self.ranks):
            row = [sights(way(n, STAR_RING).scheme, step)[rank] for n in range(2)]
            row.append(Sight(step % 2, 0.2, 1.0, 0.01))
            workers.saw([sight if number in numbers else None for number, sight in enumerate(row)])

    def agree(self) -> int:
        """Let ranks tell each other; return how many figures."""
        told = [workers.told() for workers in self.ranks]
        for workers in self.ranks:
            workers.take(told, 0.1, [float("inf")] * 3)
        return len(told[0])


def feed(chooser: WorkerChooser, steps: int, gains: dict[str, float], step_s: float = 0.1, **more) -> list[str]:
    """Show windows of four steps; return what was used in them."""
    used, spare_s = [], more.pop("spare_s", float("inf"))
    for start in range(0, steps, 4):
        used += [chooser.used] * 4
        chooser.take([seen(chooser.used, start + i, gains, **more) for i in range(4)], step_s, spare_s)
    return used


@pytest.mark.parametrize(
    ("gains", "more", "expected"),
    [
        ({STAR: 0.10, VAR: 0.20}, {}, VAR),
        ({STAR: 0.10, VAR: 0.10}, {}, STAR),
        ({STAR: 0.10, VAR: 0.105}, {}, STAR),  # not by the margin
        ({STAR: 0.10, VAR: 0.12}, {"var_s": 0.03}, STAR),  # steps of 100 ms become 20 % longer
        ({STAR: 0.10, VAR: 0.20}, {"var_s": 0.03}, VAR),
        ({STAR: 0.10, VAR: 0.20}, {"var_s": 0.03, "spare_s": 0.015}, STAR),  # an all-gather takes 15 ms more than STAR
    ],
)
def test_the_greater_gain_a_second_is_taken(gains: dict[str, float], more: dict[str, float], expected: str) -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    used = feed(chooser, 60, gains, **more)
    assert used[:8] == [STAR] * 8
    assert used[8:20] == [VAR] * 12  # a turn to get used to it, and two to measure
    assert used[20:] == [expected] * 40
    assert "of the squared norm a step" in chooser.reason


def test_where_no_rank_holds_much_more_var_is_not_tried() -> None:
    """A root sends 80 % of what it holds, the others 50 %: STAR 57.5 % of all, VAR 50 % + 30 % of its root's share."""

    def step(number: int, most: float) -> Step:
        held = [(1 - most) / (RANKS - 1)] * RANKS
        held[number // 2 % RANKS] = most  # now this rank holds most, now that
        root = number % RANKS
        sent = tuple((0.8 if rank == root else 0.5) * own for rank, own in enumerate(held))
        return Step(root, sent, tuple(held), 0.01)

    for most, tried in ((0.25, False), (0.40, False), (0.50, True)):
        chooser = WorkerChooser(RANKS, WorkerPolicy())
        decided = [chooser.take([step(n, most) for n in range(start, start + 4)], 0.1) for start in range(0, 16, 4)]
        assert (chooser.used == VAR) == tried
        assert any(decided) != tried
        sends = f"VAR would send some {0.5 + 0.3 * most:.3f} of the squared norm a step and STAR sends 0.575"
        assert (sends in chooser.reason) != tried
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    assert set(feed(chooser, 40, {STAR: 0.0, VAR: 0.0})) == {STAR}


def test_a_rank_whose_values_are_concentrated_has_var_tried() -> None:
    """All hold as much, but rank 0 would send 90 % of its own and the others 10 %: VAR takes who has most to send."""
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    for _ in range(2):
        steps = []
        for root in range(RANKS):
            own = 0.9 if root == 0 else 0.1
            sent = tuple(own if rank == root else 0.02 for rank in range(RANKS))
            steps.append(Step(root, sent, (1.0,) * RANKS, 0.01))
        chooser.take(steps, 0.1)
    assert chooser.used == VAR


def test_the_rank_that_var_takes_is_the_one_with_most_to_send() -> None:
    """Not the one that gains most over what it sends anyway: here VAR would send 2.8 of 13, and STAR sends 2.925."""
    chooser, held = WorkerChooser(RANKS, WorkerPolicy()), (1.0, 4.0, 4.0, 4.0)
    shares = (0.9, 0.25, 0.25, 0.25)
    for _ in range(2):
        steps = []
        for root in range(RANKS):
            sent = tuple((shares[rank] if rank == root else 0.2) * own for rank, own in enumerate(held))
            steps.append(Step(root, sent, held, 0.01))
        chooser.take(steps, 0.1)
    assert chooser.used == STAR
    assert "VAR would send some 0.215 of the squared norm a step and STAR sends 0.225" in chooser.reason


def test_that_ranks_are_alike_is_told_once() -> None:
    chooser, news = WorkerChooser(RANKS, WorkerPolicy()), []
    for block in range(60):
        gain = 0.1 * 1.3 ** (block // 12)
        news.append(chooser.take([Step(n % RANKS, (gain,) * RANKS, (1.0,) * RANKS, 0.01) for n in range(8)], 0.1))
    assert news == [True] + [False] * 59
    assert f"STAR sends {0.1 * 1.3**4:.3f}" in chooser.reason


def test_a_rank_from_which_more_would_be_sent_is_noticed() -> None:
    """Its gain stays, and so do the shares that ranks hold: only what VAR would send moves."""
    chooser, equal = WorkerChooser(RANKS, WorkerPolicy()), (1.0,) * RANKS
    for _ in range(4):
        chooser.take([Step(n % RANKS, (0.1,) * RANKS, equal, 0.01) for n in range(8)], 0.1)
    assert chooser.used == STAR
    for _ in range(40):
        if chooser.used == STAR:
            own = [1.0, 0.2, 0.2, 0.2]  # a root alone sends
            sent = [tuple(own[root] * (rank == root) for rank in range(RANKS)) for root in range(RANKS)]
            chooser.take([Step(n % RANKS, sent[n % RANKS], equal, 0.01) for n in range(8)], 0.1)
    assert chooser.used == VAR


@pytest.mark.parametrize(("ranks", "steps"), [(1, 8), (2, 8), (3, 12), (4, 8), (5, 10), (8, 16)])
def test_a_comparison_hears_each_rank_equally_often(ranks: int, steps: int) -> None:
    chooser = WorkerChooser(ranks, WorkerPolicy())
    decided = [chooser.take([Step(n % ranks, (0.1,) * ranks, (1.0,) * ranks, 0.01)], 0.1) for n in range(20)]
    assert decided.index(True) == steps - 1


def test_a_rank_that_comes_to_hold_more_has_var_tried() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    for _ in range(10):
        chooser.take([Step(root, (0.4,) * RANKS, (1.0,) * RANKS, 0.01) for root in range(RANKS)], 0.1)
    assert chooser.used == STAR
    assert "no rank has much more to send" in chooser.reason
    assert VAR in feed(chooser, 100, {STAR: 0.10, VAR: 0.20})


def test_while_nothing_moves_star_is_watched_in_an_eighth_of_the_steps_and_var_always() -> None:
    def awake(chooser: WorkerChooser, steps: int, gains: dict[str, float]) -> list[bool]:
        seen_in = []
        for number in range(steps):
            seen_in.append(chooser.awake)
            if chooser.awake:
                chooser.take([seen(chooser.used, number, gains)], 0.1)
            else:
                chooser.pass_by(1)
        return seen_in

    star = WorkerChooser(RANKS, WorkerPolicy())
    feed(star, 20, {STAR: 0.10, VAR: 0.10})
    assert star.used == STAR
    assert awake(star, 64, {STAR: 0.10, VAR: 0.10}) == [True] * 8 + [False] * 56
    awake(star, 12, {STAR: 0.10, VAR: 0.10})
    assert not star.awake
    star.take([seen(STAR, 0, {STAR: 0.9, VAR: 0.9})] * 8, 0.1)  # seen before all knew that it sleeps: for nothing
    assert star.gain < 0.2
    star.restart()
    assert star.awake
    var = WorkerChooser(RANKS, WorkerPolicy())
    feed(var, 20, {STAR: 0.10, VAR: 0.20})
    assert var.used == VAR
    assert all(awake(var, 64, {STAR: 0.10, VAR: 0.20}))


def test_what_is_in_use_needs_less_to_be_kept_than_to_be_taken() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    assert feed(chooser, 40, {STAR: 0.10, VAR: 0.12})[-1] == VAR
    chooser.restart()
    assert feed(chooser, 40, {STAR: 0.10, VAR: 0.107})[-1] == VAR
    chooser.restart()
    assert feed(chooser, 40, {STAR: 0.10, VAR: 0.10})[-1] == STAR


@pytest.mark.parametrize(
    ("gains", "var_s", "again"),
    [
        ({STAR: 0.10, VAR: 0.105}, 0.011, False),
        ({STAR: 0.10, VAR: 0.20}, 0.15, True),  # on another network it may be shorter
    ],
)
def test_on_another_network_var_is_tried_again_only_where_it_sends_more(
    gains: dict[str, float], var_s: float, again: bool
) -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    assert VAR in feed(chooser, 60, gains, var_s=var_s)
    assert chooser.used == STAR
    chooser.restart()
    assert (VAR in feed(chooser, 100, gains, var_s=var_s)) == again
    assert VAR in feed(chooser, 1000, {STAR: 0.15, VAR: 0.30}, var_s=0.011)


def test_gains_that_stay_are_not_compared_again_and_those_that_move_are_after_a_rest() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    feed(chooser, 40, {STAR: 0.10, VAR: 0.10})
    assert set(feed(chooser, 1000, {STAR: 0.105, VAR: 0.3})) == {STAR}
    assert VAR in feed(chooser, 40, {STAR: 0.12, VAR: 0.3})
    assert chooser.used == VAR


def test_only_steps_that_went_as_is_chosen_are_compared_with_others() -> None:
    """STAR is measured for 8 steps, then VAR is on trial, and chosen."""
    pair, mixed = Pair((True,)), []
    for step in range(28):
        pair.saw(step, 0)
        if step % 4 == 3:
            used = pair.ranks[0].way(0, STAR_RING).scheme
            pair.agree()
            mixed.append((used, pair.ranks[0].mixed(0)))
    assert mixed == [(STAR, False)] * 2 + [(VAR, True)] * 3 + [(VAR, False)] * 2


@pytest.mark.parametrize(("steps", "compared"), [(15 * 8, False), (20 * 8, True)])
def test_the_first_rest_is_that_of_sixteen_measurements(steps: int, compared: bool) -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    feed(chooser, 20, {STAR: 0.10, VAR: 0.105})  # a comparison from which nothing came
    assert (VAR in feed(chooser, steps, {STAR: 0.13, VAR: 0.3})) == compared


def test_in_peace_only_what_is_evident_is_looked_at() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    feed(chooser, 40, {STAR: 0.10, VAR: 0.10})
    assert set(feed(chooser, 100, {STAR: 0.13, VAR: 0.3})) == {STAR}
    assert VAR in feed(chooser, 40, {STAR: 0.20, VAR: 0.3})


def test_a_rank_that_var_never_hears_brings_star_back() -> None:
    gains = {STAR: 0.10, VAR: 0.20}
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    heard = feed(chooser, 200, gains, roots=(0, 1, 2, 3))
    assert heard[-1] == VAR
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    holds = [Step(0, (0.8, 0.0, 0.0, 0.0), (0.5, 0.5, 0.5, 2.5), 0.01)] * 4
    feed(chooser, 20, gains)
    assert chooser.used == VAR
    decided = [chooser.take(holds, 0.1) for _ in range(5)]
    assert decided.index(True) == 4  # after 20 steps; four turns are 16
    assert chooser.used == STAR
    assert "has not used rank 3's indices" in chooser.reason
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    little = [Step(0, (0.8, 0.0, 0.0, 0.0), (2.5, 0.5, 0.5, 0.5), 0.01)] * 4
    feed(chooser, 20, gains)
    assert not any(chooser.take(little, 0.1) for _ in range(5))  # who holds little waits for good reason


def test_a_rank_that_waits_too_long_right_after_a_round_of_trials() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    feed(chooser, 20, {STAR: 0.10, VAR: 0.20})
    holds = [Step(0, (0.8, 0.0, 0.0, 0.0), (0.5, 0.5, 0.5, 2.5), 0.01)] * 4
    for _ in range(4):
        chooser.take(holds, 0.1)
    assert chooser.used == VAR
    chooser.restart()  # now nothing is known of STAR
    chooser.take(holds, 0.1)
    chooser.take(holds, 0.1)
    assert chooser.used == STAR  # which is measured
    assert chooser.trying


def test_steps_that_are_not_finite_count_for_nothing() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    bad = Step(0, (float("nan"),) * RANKS, (1.0,) * RANKS, 0.01)
    for _ in range(20):
        chooser.take([bad] * 4, 0.1)
    assert chooser.used == STAR
    feed(chooser, 40, {STAR: 0.1, VAR: 0.2})
    assert chooser.used == VAR


def test_what_ranks_tell_each_other_comes_back_by_bucket() -> None:
    """Bucket 0 has nothing open; bucket 2 is watched in every other step."""
    pair, star = Pair((False, True, True)), STAR_RING
    workers = pair.ranks[1]
    assert not workers.watches(0, star)
    assert workers.watches(1, star)
    assert not workers.watches(1, Path("allgather"))
    for step in range(100):
        pair.saw(step, *((1, 2) if step % 4 in (1, 2) else (1,)))
        if step % 4 == 3:
            assert pair.agree() == 3 * (4 + 2)
    pair.saw(100, 1)
    workers.forget()
    assert workers.told() == []
    assert workers.way(0, star) == star
    assert workers.way(1, star) == Path("var", "ring")
    assert workers.way(1, Path("allgather")) == Path("allgather")
    assert workers.gain(1, star) == pytest.approx(1 / 3)
    assert "VAR sends 0.333" in workers.reason(1, star, "4.00 ms measured")
    assert workers.way(2, star) == star


def test_what_was_seen_before_a_switch_and_is_told_after_it_does_not_count() -> None:
    """Ranks compare while the next step computes: that step still goes the way of before."""
    pair, star = Pair((True,)), STAR_RING
    for step in range(16):
        pair.saw(2 * step, 0)
        told, before = [workers.told() for workers in pair.ranks], pair.ranks[0].way(0, star)
        pair.saw(2 * step + 1, 0)
        for workers in pair.ranks:
            workers.take(told, 0.1, [float("inf")])
        if pair.ranks[0].way(0, star) != before:
            assert pair.ranks[0].told() == []
            break
        told = [workers.told() for workers in pair.ranks]
        for workers in pair.ranks:
            workers.take(told, 0.1, [float("inf")])
    assert pair.ranks[0].way(0, star).scheme == "var"


def test_what_is_on_trial_is_not_given_the_reason_of_the_last_comparison() -> None:
    pair, star, reasons = Pair((True,)), STAR_RING, {}
    workers = pair.ranks[0]
    for step in range(32):
        pair.saw(step, 0)
        pair.agree()
        reasons.setdefault(workers.way(0, star).scheme, workers.reason(0, star, "4.00 ms measured"))
    assert reasons["star"] == "4.00 ms measured; ranks take turns: not compared with VAR yet"
    assert reasons["var"] == "4.00 ms measured; VAR is tried, to be compared"
    assert "and STAR 0.167" in workers.reason(0, star, "4.00 ms measured")


def test_what_is_not_watched_is_not_told() -> None:
    """Bucket 2 holds as much on both ranks, and nothing moves: after a measurement it is left alone for seven."""
    pair = Pair((False, False, True))
    told = []
    for step in range(0, 128, 8):
        for one in range(8):
            awake = pair.ranks[0].watches(2, STAR_RING)
            pair.saw(step + one, *([2] if awake else []))
        told.append(pair.agree())
    assert told == [24, *[0] * 7] * 2


def test_another_ratio_ends_a_trial_and_begins_a_measurement() -> None:
    chooser = WorkerChooser(RANKS, WorkerPolicy())
    feed(chooser, 12, {STAR: 0.10, VAR: 0.20})
    assert (chooser.used, chooser.trying) == (VAR, True)
    chooser.wake()
    assert (chooser.used, chooser.trying, chooser.awake) == (STAR, False, True)
    asleep = WorkerChooser(RANKS, WorkerPolicy())
    feed(asleep, 40, {STAR: 0.10, VAR: 0.10})
    assert not asleep.awake
    asleep.wake()
    asleep.take([seen(STAR, n, {STAR: 0.3, VAR: 0.1}) for n in range(8)], 0.1)
    assert asleep.gain > 0.2
