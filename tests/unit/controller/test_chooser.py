"""The choice for one bucket, on networks that are formulas."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re

import pytest

from hvd_compress.controller.chooser import Chooser
from hvd_compress.controller.policy import Policy, Round
from hvd_compress.controller.standing import Known
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.engines.names import KNOWN
from hvd_compress.schemes import verb_of
from tests.controlled import predicted

WAYS = tuple(
    Path(*names)
    for names in (
        ("dense", "ring"),
        ("dense", "tree"),
        ("allgather", "ring"),
        ("allgather", "bruck"),
        *(("artopk", a, b) for a in ("ring", "tree", "recursive_doubling") for b in ("binomial", "pipeline_16k")),
    )
)
NETWORKS = tuple(itertools.product((0.0002, 0.005, 0.02), (50e6, 1e9), (10**6, 25_600_000), (0.1, 0.001)))


def cost(candidate: Path, alpha: float, bits_per_s: float, numel: int, ratio: float, kernels_s: float) -> float:
    kernels = 0.0 if candidate.scheme == "dense" else kernels_s
    return predicted(candidate, numel, ratio, Formulas(alpha, 8 / bits_per_s, 4), kernels).seconds


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
    assert steps <= Policy().first.steps


def test_no_compression_is_chosen_where_kernels_cost_more_than_they_save() -> None:
    known = {"dense": 0.0}

    def expected(way: Path) -> float:
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


def settle(chooser: Chooser, times: dict[Path, float]) -> Path:
    chooser.begin_round(times.__getitem__)
    run_round(chooser, times.__getitem__, random.Random(0))
    assert chooser.choice is not None
    return chooser.choice.candidate


def test_what_is_in_use_stays_where_another_is_hardly_faster() -> None:
    first, second = Path("dense", "ring"), Path("dense", "tree")
    chooser = Chooser((first, second), Policy(hysteresis=0.2))
    assert settle(chooser, {first: 0.100, second: 0.150}) == first
    assert settle(chooser, {first: 0.100, second: 0.090}) == first
    assert settle(chooser, {first: 0.100, second: 0.060}) == second


def test_what_is_faster_and_not_taken_is_not_called_the_next_best() -> None:
    first, second = Path("dense", "ring"), Path("dense", "tree")
    chooser = Chooser((first, second), Policy(hysteresis=0.2))
    settle(chooser, {first: 0.100, second: 0.150})
    assert re.search(r"10\d\.\d\d ms measured, next dense-tree with 1[56]\d\.", chooser.choice.reason)
    settle(chooser, {first: 0.100, second: 0.090})
    assert chooser.choice.candidate == first
    assert re.search(
        r"measured; dense-tree took 9\d\.\d\d, not enough less to replace what is in use$", chooser.choice.reason
    )


def test_what_was_faster_in_its_trials_alone_is_not_called_the_next_best() -> None:
    """Two meet in a final, and take longer there than the third one took in the only step in which it was tried."""
    chooser, ways = prepared(Policy(Round(near=1.4, finalists=2, final=2, steps=7)), 0.100, 0.101, 0.102)
    assert not chooser.learn([0.100, 0.101, 0.110])
    assert queue(chooser) == [way for way in ways[:2] for _ in range(2)]
    assert chooser.learn([0.130, 0.130, 0.136, 0.136])
    assert chooser.choice.candidate == ways[0]
    assert chooser.choice.reason == (
        "no compression pays here: 120.00 ms measured; dense-rabenseifner took 110.00 in its trials, but did not reach "
        "the last final"
    )


def test_what_is_in_use_is_tried_again_although_it_is_predicted_slow() -> None:
    first, second = Path("dense", "ring"), Path("dense", "tree")
    chooser = Chooser((first, second), Policy())
    settle(chooser, {first: 0.1, second: 0.15})
    chooser.begin_round({first: 9.0, second: 0.1}.__getitem__)
    assert {chooser.candidate(step) for step in range(chooser.trials_left)} == {first, second}


def prepared(policy: Policy, *predicted: float) -> tuple[Chooser, tuple[Path, ...]]:
    names = ("ring", "tree", "rabenseifner", "recursive_doubling")
    ways = tuple(Path("dense", name) for name in names[: len(predicted)])
    chooser = Chooser(ways, policy)
    chooser.begin_round(dict(zip(ways, predicted, strict=True)).__getitem__)
    return chooser, ways


def queue(chooser: Chooser) -> list[Path]:
    return [chooser.candidate(step) for step in range(chooser.trials_left)]


def test_what_came_near_the_best_meets_it_in_a_final() -> None:
    chooser, ways = prepared(Policy(Round(near=1.3, final=3, steps=9)), 0.100, 0.120, 0.150)
    assert queue(chooser) == list(ways)
    assert not chooser.learn([0.100, 0.120, 0.150])
    assert queue(chooser) == [ways[0]] * 3 + [ways[1]] * 3
    assert chooser.learn([0.130, 0.110, 0.110, 0.900, 0.090, 0.090])  # what is long once is noise
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]
    assert chooser.choice.seconds == pytest.approx((0.120 + 1.3 * 0.105 + 0.090 + 0.090) / 4)


def test_six_ways_meet_in_a_final_of_the_first_round_and_the_best_of_them_again() -> None:
    ways = tuple(Path(scheme, name) for scheme in ("dense", "star") for name in KNOWN[verb_of(scheme)])[:8]
    truth = {way: 0.1 + 0.005 * place for place, way in enumerate(ways)}
    chooser = Chooser(ways, Policy())
    chooser.begin_round(truth.__getitem__)
    finals = []
    while not chooser.settled:
        finals.append(list(dict.fromkeys(queue(chooser))))
        chooser.learn([truth[way] for way in queue(chooser)])
    assert finals[:3] == [list(ways), list(ways[:6]), list(ways[:5])]
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[0]


def test_a_root_from_which_a_way_takes_long_counts() -> None:
    """STAR has another root in each of four steps; without the longest the first way would be the shorter one."""
    chooser, ways = prepared(Policy(Round(near=2.0, final=4, steps=10)), 0.700, 0.700)
    assert not chooser.learn([0.700, 0.710])
    assert queue(chooser) == [ways[0]] * 4 + [ways[1]] * 4
    assert chooser.learn([0.560, 0.780, 0.705, 0.900, 0.720, 0.710, 0.720, 0.730])
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]


def test_a_step_that_is_far_too_short_counts_for_little() -> None:
    chooser, ways = prepared(Policy(Round(near=2.0, final=3, steps=8)), 0.100, 0.100)
    chooser.learn([0.090, 0.100])
    assert chooser.learn([0.090, 0.090, 0.090, 0.100, 0.010, 0.100])
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[0]


def test_later_rounds_try_less() -> None:
    chooser, ways = prepared(Policy(Round(margin=2.0, near=1.0), Round(margin=1.5)), 0.100, 0.140, 0.190)
    assert queue(chooser) == list(ways)
    chooser.learn([0.100, 0.200, 0.300])
    chooser.learn([0.100] * chooser.trials_left)
    chooser.begin_round({way: seconds for way, seconds in zip(ways, (0.100, 0.140, 0.190), strict=True)}.__getitem__)
    assert queue(chooser) == list(ways[:2])


def test_finals_go_on_among_ever_fewer_until_one_is_left_or_steps_are_used_up() -> None:
    policy = Policy(Round(near=1.4, final=2, steps=14))
    chooser, ways = prepared(policy, 0.100, 0.101, 0.102)
    assert not chooser.learn([0.100, 0.100, 0.102])
    assert queue(chooser) == [way for way in ways for _ in range(2)]
    assert not chooser.learn([0.100, 0.100, 0.110, 0.110, 0.135, 0.135])
    assert queue(chooser) == [way for way in ways[:2] for _ in range(2)]
    assert chooser.learn([0.100, 0.100, 0.110, 0.110])  # one step is left: not enough for another final

    chooser, ways = prepared(policy, 0.100, 0.101)
    chooser.learn([0.100, 0.101])
    assert chooser.learn([0.100, 0.100, 0.140, 0.140])


@pytest.mark.parametrize("others", [9, 29])
def test_steps_in_which_other_buckets_have_more_to_try_are_used_up_and_tell_more_of_what_is_tried(others: int) -> None:
    policy = Policy(Round(near=1.4, final=2, steps=14))
    chooser, ways = prepared(policy, 0.100, 0.101)
    went = [chooser.candidate(step) for step in range(2 + others)]
    assert went[:4] == [*ways, *ways]
    assert chooser.learn([0.100, *[0.101 if way == ways[1] else 0.110 for way in went[1:]]])  # no final is left
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]
    assert chooser.choice.seconds == pytest.approx(0.101)
    chooser, ways = prepared(policy, 0.100, 0.101)
    assert not chooser.learn([0.100, 0.101] * 5)
    assert queue(chooser) == [way for way in ways for _ in range(2)]


def test_lucky_single_steps_keep_nobody_out_of_the_next_final() -> None:
    chooser, ways = prepared(Policy(Round(near=1.4, finalists=2, final=2, steps=12)), 0.100, 0.101, 0.102, 0.103)
    assert not chooser.learn([0.100, 0.101, 0.110, 0.111])
    assert queue(chooser) == [way for way in ways[:2] for _ in range(2)]
    assert not chooser.learn([0.130, 0.130, 0.136, 0.136])  # more than the others took
    assert queue(chooser) == [way for way in ways[:2] for _ in range(2)]


def test_there_is_no_final_among_what_cannot_be_told_apart() -> None:
    chooser, _ = prepared(Policy(least_s=0.001), 0.100, 0.101)
    assert chooser.learn([0.1000, 0.1009])


def test_a_later_round_is_shorter_than_the_first() -> None:
    chooser, ways = prepared(
        Policy(Round(near=3.0, final=2, steps=40), Round(near=3.0, final=2, steps=8)), 0.100, 0.101
    )
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
        chooser, _ = prepared(Policy(Round(final=2)), 0.100, 0.101)
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
    far, near = (Path("star", algorithm) for algorithm in ("ring", "rabenseifner"))
    others = [Path("star", way.algorithm, "binomial") for way in (far, near)]
    fast = Path("allgather")
    chooser = Chooser((fast, far, near, *others), Policy(Round(related=1.6)))
    predicted = {fast: 0.1, far: 0.12, near: 0.13, others[0]: 0.19, others[1]: 0.19}
    chooser.begin_round(predicted.__getitem__)
    assert queue(chooser) == [fast, far, near]
    assert not chooser.learn([0.1, 0.2, 0.15])
    assert queue(chooser) == [others[1]]


def test_in_later_rounds_ways_to_broadcast_are_tried_of_what_is_nearer_to_the_best() -> None:
    fast, near = Path("allgather"), Path("star", "ring")
    other = Path("star", "ring", "binomial")
    chooser = Chooser((fast, near, other), Policy(Round(related=1.6, near=1.0), Round(related=1.3, near=1.0)))
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
    chooser, ways = prepared(Policy(Round(near=1.3)), 0.100, 0.120)
    assert not chooser.learn([0.100, 0.200])
    assert queue(chooser) == [ways[0]] * 2
    assert chooser.learn([0.100, 0.110])


def test_a_single_step_that_was_lucky_wins_nothing() -> None:
    chooser, ways = prepared(Policy(Round(near=1.3)), 0.100, 0.110)
    assert not chooser.learn([0.066, 0.108])
    assert not chooser.learn([0.117, 0.118])
    assert sorted(set(queue(chooser)), key=str) == sorted(ways, key=str)  # a final
    chooser.learn([0.117 if way == ways[0] else 0.108 for way in queue(chooser)])
    while not chooser.settled:
        chooser.learn([0.117 if way == ways[0] else 0.108 for way in queue(chooser)])
    assert chooser.choice is not None
    assert chooser.choice.candidate == ways[1]


def test_a_round_begins_with_so_many_ways_at_most_and_the_one_in_use() -> None:
    ways = tuple(Path("dense", name) for name in ("ring", "tree", "recursive_doubling", "rabenseifner"))
    expected = {way: 0.1 + 0.001 * place for place, way in enumerate(ways)}
    chooser = Chooser(ways, Policy(Round(most=3), Round(most=3)))
    chooser.begin_round(expected.__getitem__)
    assert queue(chooser) == list(ways[:3])
    chooser.learn([0.1, 0.5, 0.5])
    chooser.learn([0.1] * chooser.trials_left)
    assert chooser.settled
    assert chooser.candidate(0) == ways[0]
    chooser.begin_round({**expected, ways[0]: 9.0}.__getitem__)
    assert queue(chooser) == [*ways[1:3], ways[0]]


def test_in_a_later_round_steps_are_left_for_a_final_however_many_ways_are_near() -> None:
    ways = tuple(Path(scheme, name) for scheme in ("dense", "star", "allgather") for name in KNOWN[verb_of(scheme)])
    truth = {way: 0.1 + 0.002 * place for place, way in enumerate(ways)}
    chooser = Chooser(ways, Policy())
    settle(chooser, truth)
    chooser.begin_round({**truth, ways[0]: 9.0}.__getitem__)
    assert queue(chooser) == [*ways[1:6], ways[0]]
    assert not chooser.learn([truth[way] for way in queue(chooser)])
    assert queue(chooser) == [way for way in ways[:4] for _ in range(2)]


def test_in_a_later_round_steps_are_left_for_broadcasts_however_many_ways_are_near() -> None:
    """By another broadcast, which is predicted to be slower, it takes three quarters."""
    first = tuple(Path(scheme, name) for scheme in ("star", "allgather") for name in KNOWN[verb_of(scheme)])
    other = Path("star", "ring", "pipeline_16k")
    predicted = {**{way: 0.1 + 0.002 * place for place, way in enumerate(first)}, other: 0.14}
    chooser = Chooser((*first, other), Policy())
    settle(chooser, predicted)
    assert settle(chooser, predicted) == first[0]
    chooser.begin_round(predicted.__getitem__)
    run_round(chooser, {**predicted, other: 0.075}.__getitem__, random.Random(0))
    assert chooser.choice is not None
    assert chooser.choice.candidate == other


def test_the_fastest_other_way_of_the_last_round_is_the_rival() -> None:
    chooser, _ = prepared(Policy(Round(near=1.0), least_s=0.0), 0.100, 0.120, 0.130)
    chooser.learn([0.100, 0.300, 0.200])
    chooser.learn([0.100] * chooser.trials_left)
    assert chooser.rival_s == 0.2
    alone, _ = prepared(Policy(), 0.100)
    alone.learn([0.1])
    assert alone.rival_s == math.inf


def test_what_is_known_of_a_choice_is_where_it_comes_from() -> None:
    chooser, _ = prepared(Policy(), 0.100)
    chooser.learn([0.1])
    assert (chooser.standing.known, chooser.standing.seconds, chooser.usual) == (Known.TRIALS, 0.1, None)
    assert not chooser.standing.drifted(0.12)
    assert chooser.choice is not None
    assert chooser.usual == dataclasses.replace(chooser.choice, seconds=0.12)
    chooser.scale(2.0)
    assert (chooser.standing.known, chooser.choice.seconds) == (Known.TRIALS, 0.24)
    chooser.recall(chooser.choice, chooser.measured)
    assert (chooser.standing.known, chooser.standing.seconds, chooser.usual) == (Known.BEFORE, 0.24, None)
