"""The choice for one bucket, on networks that are formulas."""

from __future__ import annotations

import itertools
import random

import pytest

from hvd_compress.controller.chooser import Chooser, Policy
from hvd_compress.cost.candidates import Candidate
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.predict import predict

WAYS = tuple(
    Candidate(*names)
    for names in (
        ("dense", "ring"),
        ("dense", "tree"),
        ("allgather", "ring"),
        ("allgather", "bruck"),
        *(("artopk", a, b) for a in ("ring", "tree", "recursive_doubling") for b in ("binomial", "pipeline_16k")),
    )
)
NETWORKS = tuple(itertools.product((0.0002, 0.005, 0.02), (50e6, 1e9), (10**6, 25_600_000), (0.1, 0.001)))


def cost(candidate: Candidate, alpha: float, bits_per_s: float, numel: int, ratio: float, kernels_s: float) -> float:
    kernels = 0.0 if candidate.scheme == "dense" else kernels_s
    return predict(candidate, numel, ratio, Formulas(alpha, 8 / bits_per_s, 4), 4, kernels).seconds


def run_round(chooser: Chooser, truth, noise: random.Random) -> int:
    """Let a round of trials run; return how many steps it took."""
    steps = 0
    while not chooser.settled:
        tried = [chooser.candidate(step) for step in range(chooser.trials_left)]
        steps += len(tried)
        chooser.learn([truth(candidate) * noise.uniform(1.0, 1.1) for candidate in tried])
    return steps


@pytest.mark.parametrize(("alpha", "bits", "numel", "ratio"), NETWORKS)
def test_a_wrong_prediction_is_corrected_by_trials(alpha: float, bits: float, numel: int, ratio: float) -> None:
    noise = random.Random(1)
    # A third off in each collective, as formulas are; and nothing is known of the kernels.
    wrong = {way: noise.uniform(0.8, 1.25) for way in WAYS}
    kernels_s = numel * 1e-9
    chooser = Chooser(WAYS, Policy())
    chooser.begin_round(lambda way: wrong[way] * cost(way, alpha, bits, numel, ratio, 0.0))
    truth = {way: cost(way, alpha, bits, numel, ratio, kernels_s) for way in WAYS}
    steps = run_round(chooser, truth.__getitem__, noise)
    assert chooser.choice is not None
    assert truth[chooser.choice.candidate] <= 1.1 * min(truth.values()) + 0.0003
    assert steps <= Policy().first_steps


def test_no_compression_is_chosen_where_kernels_cost_more_than_they_save() -> None:
    known = {"dense": 0.0}

    def expected(way: Candidate) -> float:
        return cost(way, 2e-5, 20e9, 10**7, 0.01, 0.0) + known.get(way.scheme, max(known.values()))

    chooser = Chooser(WAYS, Policy())
    chooser.begin_round(expected)
    while not chooser.settled:
        tried = [chooser.candidate(step) for step in range(chooser.trials_left)]
        times = [cost(way, 2e-5, 20e9, 10**7, 0.01, 0.2) for way in tried]
        known.update({way.scheme: 0.2 for way in tried if way.scheme != "dense"})
        chooser.learn(times)
    assert chooser.choice is not None
    assert chooser.choice.candidate.scheme == "dense"
    assert "no compression pays here" in chooser.choice.reason


def settle(chooser: Chooser, times: dict[Candidate, float]) -> Candidate:
    chooser.begin_round(times.__getitem__)
    run_round(chooser, times.__getitem__, random.Random(0))
    assert chooser.choice is not None
    return chooser.choice.candidate


def test_what_is_in_use_stays_where_another_is_hardly_faster() -> None:
    first, second = Candidate("dense", "ring"), Candidate("dense", "tree")
    chooser = Chooser((first, second), Policy(hysteresis=0.2))
    assert settle(chooser, {first: 0.100, second: 0.150}) == first
    assert settle(chooser, {first: 0.100, second: 0.090}) == first
    assert settle(chooser, {first: 0.100, second: 0.060}) == second


def test_what_is_in_use_is_tried_again_although_it_is_predicted_slow() -> None:
    first, second = Candidate("dense", "ring"), Candidate("dense", "tree")
    chooser = Chooser((first, second), Policy())
    settle(chooser, {first: 0.1, second: 0.15})
    chooser.begin_round({first: 9.0, second: 0.1}.__getitem__)
    assert {chooser.candidate(step) for step in range(chooser.trials_left)} == {first, second}


def test_drift_needs_two_windows_or_one_that_is_evident() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert not chooser.drifted(0.1)
    assert not chooser.drifted(0.15)
    assert not chooser.drifted(0.1)  # one window that was as ever forgives the one before
    assert not chooser.drifted(0.15)
    assert chooser.drifted(0.15)
    settle(chooser, {first: 0.1})
    assert chooser.drifted(0.04)


def test_windows_are_compared_with_the_first_one_and_not_with_the_shortest_trial() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert not any(chooser.drifted(0.14) for _ in range(5))
    assert not chooser.drifted(0.19)
    assert chooser.drifted(0.19)


def test_a_first_window_that_denies_the_trials_is_believed_the_second_time() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert chooser.drifted(0.3)
    assert not chooser.lasts()
    assert not any(chooser.drifted(0.3) for _ in range(3))
    assert not chooser.odd
    assert chooser.drifted(0.1)


def test_what_was_recalled_and_is_denied_is_tried_again_at_once() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert chooser.choice is not None
    chooser.recall(chooser.choice, {first: 0.1})
    assert chooser.drifted(0.3)
    assert chooser.lasts()
    chooser.recall(chooser.choice, {first: 0.1})
    assert not chooser.drifted(0.1)  # it holds
    assert chooser.drifted(0.3)
    assert not chooser.lasts()


def test_what_one_choice_was_doubted_for_is_none_of_the_next() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert chooser.drifted(0.3)
    settle(chooser, {first: 0.1})  # the network was another one
    assert chooser.drifted(0.3)


def test_a_first_window_that_denies_the_trials_is_looked_into_whatever_was_noise_before() -> None:
    """It could not be seen later: the second one is believed."""
    first = Candidate("star", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert not chooser.drifted(0.1)
    for _ in range(3):
        assert any(chooser.drifted(0.22) for _ in range(8))
        chooser.lasts()
        assert not chooser.drifted(0.1)
    chooser.scale(1.2)
    assert chooser.drifted(0.26)


def test_noise_is_forgotten_after_many_windows_without() -> None:
    first = Candidate("star", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001, forgets=5))
    settle(chooser, {first: 0.1})
    assert not chooser.drifted(0.1)
    assert chooser.drifted(0.22)
    assert not chooser.lasts()
    assert not any(chooser.drifted(seconds) for seconds in (0.1, 0.22, 0.1, 0.1, 0.1, 0.1, 0.1))
    assert chooser.drifted(0.22)


def test_looks_at_what_is_odd_come_ever_more_rarely_but_for_what_is_odder() -> None:
    first = Candidate("star", "ring")
    for worse, expected in ((None, [1, 2, 4, 8]), (5, [1, 2, 4, 5])):
        chooser = Chooser((first,), Policy(drift=1.25, evident=1.5, least_s=0.001))
        settle(chooser, {first: 0.1})
        assert not chooser.drifted(0.1)
        looks = []
        for window in range(1, 9):
            if chooser.drifted(1.0 if worse and window >= worse else 0.16):
                looks.append(window)
                if chooser.lasts() or window == worse:
                    break
        assert looks == expected


def test_what_lasts_again_and_again_is_tried_more_and_more_rarely_until_the_network_changes() -> None:
    first = Candidate("star", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, calm=2, least_s=0.001))
    seconds, windows = 0.1, []
    for round_ in range(5):
        settle(chooser, {first: seconds})
        assert not chooser.drifted(seconds)
        seconds = 0.22 if seconds == 0.1 else 0.1
        windows.append(next(n for n in range(1, 100) if chooser.drifted(seconds) and chooser.lasts()))
        if round_ == 3:
            chooser.forgive()
    assert windows == [4, 8, 16, 16, 4]


def test_after_something_else_is_sent_the_next_window_is_usual() -> None:
    first = Candidate("star", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert not chooser.drifted(0.1)
    chooser.relearn()
    assert not chooser.drifted(0.3)
    assert chooser.drifted(0.1)


def test_where_it_was_noise_once_an_odd_window_is_nothing_to_hurry_for() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, least_s=0.001))
    settle(chooser, {first: 0.1})
    assert not chooser.drifted(0.1)
    assert not chooser.drifted(0.14)
    assert chooser.odd
    assert chooser.drifted(0.14)
    assert not chooser.lasts()
    assert not chooser.odd


def test_what_is_far_off_for_long_is_tried_again_sooner() -> None:
    first = Candidate("dense", "ring")
    for seconds, windows in ((0.22, 8), (0.3, 4)):
        chooser = Chooser((first,), Policy(drift=1.25, evident=2.0, broken=2.5, calm=3, least_s=0.001))
        settle(chooser, {first: 0.1})
        assert not chooser.drifted(0.1)
        tried = [chooser.drifted(seconds) and chooser.lasts() for _ in range(windows)]
        assert tried == [False] * (windows - 1) + [True]


def test_where_more_is_sent_a_window_that_takes_as_much_longer_is_no_drift_and_one_that_takes_far_longer_is() -> None:
    """A network that changes just when another ratio is chosen must not become what is usual."""
    first = Candidate("star", "ring")
    for seconds, drifted in ((0.16, False), (0.14, False), (0.5, True), (0.06, True)):
        chooser = Chooser((first,), Policy(evident=1.5, least_s=0.001))
        settle(chooser, {first: 0.08})
        assert not chooser.drifted(0.1)
        chooser.scale(1.5)
        assert chooser.known_s == pytest.approx(0.15)
        assert chooser.drifted(seconds) == drifted
        assert drifted or chooser.known_s == seconds


def test_alarms_that_change_nothing_make_patient_and_a_breakdown_is_seen_all_the_same() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(drift=1.25, evident=1.5, broken=2.5, calm=2, least_s=0.001))

    def windows_until(seconds: float) -> int:
        assert not chooser.drifted(0.1)  # what is usual
        return next(count for count in range(1, 100) if chooser.drifted(seconds))

    settle(chooser, {first: 0.1})
    needed = []
    for _ in range(4):
        needed.append((windows_until(0.18), chooser.lasts()))
    assert needed == [(1, False), (2, False), (4, True), (4, False)]  # no more; what lasts is tried, then more rarely
    assert not chooser.drifted(0.1)
    assert windows_until(0.3) == 2
    settle(chooser, {first: 0.3})  # it was true
    assert not chooser.drifted(0.3)
    assert chooser.drifted(0.5)


def prepared(policy: Policy, *predicted: float) -> tuple[Chooser, tuple[Candidate, ...]]:
    names = ("ring", "tree", "rabenseifner", "recursive_doubling")
    ways = tuple(Candidate("dense", name) for name in names[: len(predicted)])
    chooser = Chooser(ways, policy)
    chooser.begin_round(dict(zip(ways, predicted, strict=True)).__getitem__)
    return chooser, ways


def queue(chooser: Chooser) -> list[Candidate]:
    return [chooser.candidate(step) for step in range(chooser.trials_left)]


def test_what_came_near_the_best_meets_it_in_a_final() -> None:
    chooser, ways = prepared(Policy(near=1.3, final=3, first_steps=9), 0.100, 0.120, 0.150)
    assert queue(chooser) == list(ways)
    assert not chooser.learn([0.100, 0.120, 0.150])
    assert queue(chooser) == [ways[0]] * 3 + [ways[1]] * 3
    assert chooser.learn([0.130, 0.110, 0.110, 0.900, 0.090, 0.090])  # what is long once is noise
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]
    assert chooser.choice.seconds == pytest.approx((0.120 + 1.3 * 0.105 + 0.090 + 0.090) / 4)


def test_a_root_from_which_a_way_takes_long_counts() -> None:
    """STAR has another root in each of four steps; without the longest the first way would be the shorter one."""
    chooser, ways = prepared(Policy(near=2.0, first_steps=10), 0.700, 0.700)
    assert not chooser.learn([0.700, 0.710])
    assert queue(chooser) == [ways[0]] * 4 + [ways[1]] * 4
    assert chooser.learn([0.560, 0.780, 0.705, 0.900, 0.720, 0.710, 0.720, 0.730])
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]


def test_later_rounds_try_less() -> None:
    chooser, ways = prepared(Policy(margin=2.0, later_margin=1.5, near=1.0), 0.100, 0.140, 0.190)
    assert queue(chooser) == list(ways)
    chooser.learn([0.100, 0.200, 0.300])
    chooser.learn([0.100] * chooser.trials_left)
    chooser.begin_round({way: seconds for way, seconds in zip(ways, (0.100, 0.140, 0.190), strict=True)}.__getitem__)
    assert queue(chooser) == list(ways[:2])


def test_finals_go_on_among_ever_fewer_until_one_is_left_or_steps_are_used_up() -> None:
    policy = Policy(near=1.4, final=2, first_steps=14)
    chooser, ways = prepared(policy, 0.100, 0.101, 0.102)
    assert not chooser.learn([0.100, 0.100, 0.102])
    assert queue(chooser) == [way for way in ways for _ in range(2)]
    assert not chooser.learn([0.100, 0.100, 0.110, 0.110, 0.135, 0.135])
    assert queue(chooser) == [way for way in ways[:2] for _ in range(2)]
    assert chooser.learn([0.100, 0.100, 0.110, 0.110])  # one step is left: not enough for another final

    chooser, ways = prepared(policy, 0.100, 0.101)
    chooser.learn([0.100, 0.101])
    assert chooser.learn([0.100, 0.100, 0.140, 0.140])


def test_there_is_no_final_among_what_cannot_be_told_apart() -> None:
    chooser, _ = prepared(Policy(least_s=0.001), 0.100, 0.101)
    assert chooser.learn([0.1000, 0.1009])


def test_a_later_round_is_shorter_than_the_first() -> None:
    chooser, ways = prepared(Policy(near=3.0, final=2, first_steps=40, steps=8), 0.100, 0.101)
    taken = []
    truth = {way: 0.1 + 0.001 * place for place, way in enumerate(ways)}
    for _ in range(2):
        chooser.begin_round(truth.__getitem__)
        steps = 0
        while not chooser.settled:
            steps += chooser.trials_left
            chooser.learn([truth[way] for way in queue(chooser)])
        taken.append(steps)
    assert taken == [38, 6]


def test_a_network_that_changes_between_trials_and_final_upsets_the_round() -> None:
    for factor, upset in ((2.0, True), (0.5, True), (1.2, False)):
        chooser, _ = prepared(Policy(final=2), 0.100, 0.101)
        chooser.learn([0.100, 0.101])
        ended = chooser.learn([factor * 0.1] * 4)
        assert (ended, chooser.upset) == (upset, upset)
    chooser.begin_round(lambda way: 0.1)
    assert not chooser.upset
    chooser.learn([0.100, 0.101])
    chooser.learn([0.1, 0.1, 0.3, 0.3])  # one alone that takes longer was lucky before
    assert not chooser.upset


def test_ways_to_broadcast_are_tried_of_what_is_not_far_from_the_best() -> None:
    """Predictions of small messages are off by more than ways to broadcast differ."""
    far, near = (Candidate("star", algorithm) for algorithm in ("ring", "rabenseifner"))
    others = [Candidate("star", way.algorithm, "binomial") for way in (far, near)]
    fast = Candidate("allgather")
    chooser = Chooser((fast, far, near, *others), Policy(related=1.6))
    predicted = {fast: 0.1, far: 0.12, near: 0.13, others[0]: 0.19, others[1]: 0.19}
    chooser.begin_round(predicted.__getitem__)
    assert queue(chooser) == [fast, far, near]
    assert not chooser.learn([0.1, 0.2, 0.15])
    assert queue(chooser) == [others[1]]


def test_in_later_rounds_ways_to_broadcast_are_tried_of_what_is_nearer_to_the_best() -> None:
    fast, near = Candidate("allgather"), Candidate("star", "ring")
    other = Candidate("star", "ring", "binomial")
    chooser = Chooser((fast, near, other), Policy(related=1.6, later_related=1.3, near=1.0))
    predicted = {fast: 0.1, near: 0.12, other: 0.19}
    tried = []
    for _ in range(2):
        chooser.begin_round(predicted.__getitem__)
        assert queue(chooser) == [fast, near]
        chooser.learn([0.1, 0.15])
        tried.append(other in queue(chooser))
        while not chooser.settled:
            chooser.learn([0.1 if way == fast else 0.2 for way in queue(chooser)])
    assert tried == [True, False]


def test_a_clear_winner_is_tried_twice_more_and_needs_no_final() -> None:
    chooser, ways = prepared(Policy(near=1.3), 0.100, 0.120)
    assert not chooser.learn([0.100, 0.200])
    assert queue(chooser) == [ways[0]] * 2
    assert chooser.learn([0.100, 0.110])


def test_a_single_step_that_was_lucky_wins_nothing() -> None:
    chooser, ways = prepared(Policy(near=1.3), 0.100, 0.110)
    assert not chooser.learn([0.066, 0.108])
    assert not chooser.learn([0.117, 0.118])
    assert sorted(set(queue(chooser)), key=str) == sorted(ways, key=str)  # a final
    chooser.learn([0.117 if way == ways[0] else 0.108 for way in queue(chooser)])
    while not chooser.settled:
        chooser.learn([0.117 if way == ways[0] else 0.108 for way in queue(chooser)])
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]


def test_a_lucky_choice_that_its_first_window_denies_is_tried_again_once() -> None:
    for seconds, again in ((0.18, False), (0.25, True)):  # the other way took 0.2
        chooser, ways = prepared(Policy(near=1.3, evident=1.5, least_s=0.001), 0.100, 0.120)
        chooser.learn([0.100, 0.200])
        chooser.learn([0.100] * 2)
        assert chooser.drifted(seconds)
        assert chooser.lasts() == again
        if again:
            settle(chooser, {ways[0]: 0.1, ways[1]: 0.2})
            assert chooser.drifted(seconds)
            assert not chooser.lasts()  # that is noise


def test_times_below_what_can_be_told_apart_are_no_drift() -> None:
    first = Candidate("dense", "ring")
    chooser = Chooser((first,), Policy(least_s=0.001))
    chooser.begin_round(lambda _: 0.0001)
    chooser.learn([0.0001] * chooser.trials_left)
    assert not any(chooser.drifted(0.0009) for _ in range(5))


def test_a_round_begins_with_so_many_ways_at_most_and_the_one_in_use() -> None:
    ways = tuple(Candidate("dense", name) for name in ("ring", "tree", "recursive_doubling", "rabenseifner"))
    expected = {way: 0.1 + 0.001 * place for place, way in enumerate(ways)}
    chooser = Chooser(ways, Policy(most=3))
    chooser.begin_round(expected.__getitem__)
    assert queue(chooser) == list(ways[:3])
    chooser.learn([0.1, 0.5, 0.5])
    chooser.learn([0.1] * chooser.trials_left)
    assert chooser.settled
    assert chooser.candidate(0) == ways[0]
    chooser.begin_round({**expected, ways[0]: 9.0}.__getitem__)
    assert queue(chooser) == [*ways[1:], ways[0]]
