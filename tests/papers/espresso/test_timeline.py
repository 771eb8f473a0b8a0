"""Timelines and searches in C++, beside a simple simulator, brute force and cases worked by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso.kernels import NativeProblem
from tests.papers.espresso.simulator import Chain, simulate

TRAINING, HOST, WITHIN, ACROSS, LATENCY = range(5)


def problem(backward: Sequence[int], options: Sequence[Sequence[Chain]], tracks: int = 1) -> NativeProblem:
    """Return a problem in which each tensor has options of its own: `options[tensor][number]` is a chain."""
    kinds: list[tuple[int, int, int, int]] = []  # tensor, option, place in the chain, lane
    numbers = range(len(options[0]))
    table: list[list[int]] = [[] for _ in numbers]
    for number in numbers:
        for place in range(max(len(options[tensor][number]) for tensor in range(len(backward)))):
            for lane in range(5):
                table[number].append(len(kinds))
                kinds.append((0, number, place, lane))
    prices = [
        [
            options[tensor][number][place][1]
            if place < len(options[tensor][number]) and options[tensor][number][place][0] == lane
            else 0
            for _, number, place, lane in kinds
        ]
        for tensor in range(len(backward))
    ]
    return NativeProblem(list(backward), list(range(len(backward))), table, [kind[3] for kind in kinds], prices, tracks)


def end(backward: Sequence[int], chains: Sequence[Chain]) -> int:
    return problem(backward, [[chain] for chain in chains]).ends([[0] * len(backward)])[0]


def _random_case(seed: int, lanes: int = 4) -> tuple[list[int], list[list[Chain]]]:
    """Return durations and options; small numbers, so that many events come at the same time."""
    draw = random.Random(seed)
    longest = draw.choice([3, 10, 1000])
    tensors = draw.randint(1, 12)
    backward = [draw.randint(0, longest) for _ in range(tensors)]

    def chain() -> Chain:
        return [(draw.randrange(lanes), draw.randint(0, longest)) for _ in range(draw.randint(0, 7))]

    return backward, [[chain() for _ in range(3)] for _ in range(tensors)]


@pytest.mark.parametrize("block", range(8))
def test_ends_are_those_of_a_simple_simulator(block: int) -> None:
    for seed in range(block * 400, (block + 1) * 400):
        backward, options = _random_case(seed)
        draw = random.Random(seed)
        strategies = [[draw.randrange(3) for _ in backward] for _ in range(2)]
        ends = problem(backward, options).ends(strategies)
        for strategy, found in zip(strategies, ends, strict=True):
            chains = [options[tensor][number] for tensor, number in enumerate(strategy)]
            assert found == simulate(backward, chains), f"seed {seed}"


@pytest.mark.parametrize("tracks", [1, 2, 3, 8])
def test_latencies_pass_side_by_side_on_the_tracks_of_their_tensors(tracks: int) -> None:
    for seed in range(200):
        backward, options = _random_case(seed, lanes=5)
        native = problem(backward, options, tracks)
        strategy = [random.Random(seed).randrange(3) for _ in backward]

        expected = simulate(backward, _on_tracks(options, strategy, tracks))
        assert native.ends([strategy]) == [expected], f"seed {seed}"
        lanes = {(span.lane, span.tensor % tracks) for span in native.spans(strategy) if span.lane >= LATENCY}
        assert all(lane == LATENCY + track for lane, track in lanes)
        better = native.improve(strategy, range(3), 500)
        again = simulate(backward, _on_tracks(options, better.strategy, tracks))
        assert better.end_ns == again <= expected, f"seed {seed}"


def _on_tracks(options: list[list[Chain]], strategy: Sequence[int], tracks: int) -> list[Chain]:
    return [
        [(LATENCY + tensor % tracks if lane == LATENCY else lane, ns) for lane, ns in options[tensor][number]]
        for tensor, number in enumerate(strategy)
    ]


def test_two_latencies_at_a_time_are_half_as_long() -> None:
    chains: list[list[Chain]] = [[[(LATENCY, 10), (ACROSS, 1)]]] * 4
    assert [problem([1, 0, 0, 0], chains, tracks).ends([[0] * 4])[0] for tracks in (1, 2, 4)] == [42, 23, 15]


@pytest.mark.parametrize("seed", range(50))
def test_spans_are_a_schedule(seed: int) -> None:
    backward, options = _random_case(seed)
    spans = problem(backward, options).spans([0] * len(backward))
    for lane in range(4):
        on_lane = sorted((span.start_ns, span.end_ns) for span in spans if span.lane == lane)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(on_lane))
    for tensor, chain in enumerate(option[0] for option in options):
        tasks = [span for span in spans if span.tensor == tensor and span.task >= 0]
        assert [(span.lane, span.end_ns - span.start_ns) for span in tasks] == [task for task in chain if task[1] > 0]
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(tasks))
    assert max((span.end_ns for span in spans), default=0) == problem(backward, options).ends([[0] * len(backward)])[0]


class TestByHand:
    """In units of one box of the figure. Three tensors whose gradients take 2 each, and 4 to communicate (Figure 2)."""

    BACKWARD = (2, 2, 2)
    PLAIN: ClassVar[Chain] = [(ACROSS, 4)]
    GPU: ClassVar[Chain] = [(TRAINING, 1), (ACROSS, 1)]
    CPU: ClassVar[Chain] = [(HOST, 3), (ACROSS, 1)]

    def test_baseline(self) -> None:
        assert end(self.BACKWARD, [self.PLAIN] * 3) == 14  # 2, then three times 4 without a gap

    def test_last_tensor_on_the_gpu(self) -> None:
        # Figure 2 (b): its compression hides behind the second one's communication, which ends at 10
        assert end(self.BACKWARD, [self.PLAIN, self.PLAIN, self.GPU]) == 11

    def test_all_on_the_gpu_delay_the_computation(self) -> None:
        # Figure 2 (c): computations end at 2, 5, 8; the last one is compressed at 9 and there at 10
        assert end(self.BACKWARD, [self.GPU] * 3) == 10

    def test_all_on_the_cpu_wait_for_each_other(self) -> None:
        # Figure 2 (d): compressed from 2 to 5, 5 to 8, 8 to 11; the last one is there at 12
        assert end(self.BACKWARD, [self.CPU] * 3) == 12

    def test_cpu_for_the_first_and_gpu_for_the_last(self) -> None:
        # Figure 2 (e): the first is compressed from 2 to 5 and there at 6; the second from 6 to 10; the last at 7, 11
        assert end(self.BACKWARD, [self.CPU, self.PLAIN, self.GPU]) == 10

    def test_divisible_or_not(self) -> None:
        """Figure 5 (a) and (b): of two collectives for the first tensor, either is better, by what comes next."""
        indivisible: Chain = [(TRAINING, 1), (ACROSS, 4), (TRAINING, 1)]
        divisible: Chain = [(TRAINING, 1), (ACROSS, 1), (TRAINING, 2), (ACROSS, 1), (TRAINING, 1)]
        short, long = (2, 1), (2, 8)
        last: Chain = [(ACROSS, 3)]
        # short: 2, compressed 3, link 3 to 7; the second gradient at 4 waits until 7, and is there at 10
        assert end(short, [indivisible, last]) == 10
        # link 3 to 4, the GPU computes 3 to 4, then 4 to 6, the second goes 4 to 7, the first 7 to 8, decompressed at 9
        assert end(short, [divisible, last]) == 9
        # computation until 11, decompressed until 12, while the second goes 11 to 14
        assert end(long, [indivisible, last]) == 14
        # as before, but the GPU works on the first from 11 to 13; the second goes 11 to 14, the first 14 to 15, then 16
        assert end(long, [divisible, last]) == 16

    def test_within_a_host_too(self) -> None:
        """Figure 5 (c) and (d): to compress within a host, too, pays where links are what is waited for."""
        across_only: Chain = [(WITHIN, 4), (TRAINING, 1), (ACROSS, 2), (TRAINING, 1), (WITHIN, 4)]
        everywhere: Chain = [(TRAINING, 2), (WITHIN, 1), (TRAINING, 2), (ACROSS, 2), (WITHIN, 1), (TRAINING, 2)]
        assert end((2, 1), [across_only, []]) == 14
        assert end((2, 1), [everywhere, []]) == 12
        # a longer computation: what communication within the host saved was hidden, and more compression delays it
        assert end((2, 12), [across_only, []]) == 22  # within until 6; compressed at 14, 15, then 17, 18, 22
        assert end((2, 12), [everywhere, []]) == 23  # the computation ends at 16; 18, 20, 21, 23

    def test_before_a_bubble_nothing_is_gained(self) -> None:
        """Figure 9 (a): the first tensor is there before the second is ready."""
        small, plain = [[(ACROSS, 1)], [(ACROSS, 2)]], (2, 6, 1)
        rest: list[Chain] = [[(ACROSS, 4)], [(ACROSS, 4)]]
        assert end(plain, [small[1], *rest]) == end(plain, [small[0], *rest]) == 16

    def test_the_last_of_equals_first(self) -> None:
        """Figure 9 (b) and (c): of two tensors of one size, compressing the last one gains more."""
        backward, plain, gpu = (1, 2, 2), [(ACROSS, 4)], [(TRAINING, 1), (ACROSS, 1)]
        first: Chain = [(ACROSS, 1)]
        assert end(backward, [first, gpu, plain]) == 10
        assert end(backward, [first, plain, gpu]) == 8
        equal = NativeProblem([1, 2, 2], [1, 0, 0], [[0], [1, 2]], [ACROSS, TRAINING, ACROSS], [[4, 1, 1], [1, 9, 1]])
        found = equal.select([8, 1], [0, 1], 0)
        assert (found.strategy, found.end_ns) == ((0, 0, 1), 8)


def test_gradients_that_take_no_time_are_there_with_the_one_before() -> None:
    assert end((0, 0, 3, 0), [[(ACROSS, 1)]] * 4) == 5
    assert end((0, 0), [[], []]) == 0


def test_of_those_ready_at_once_the_earlier_tensor_comes_first() -> None:
    # at 2 the first one's call across hosts and the second's, whose computation is done, are ready
    spans = problem((1, 1), [[[(WITHIN, 1), (ACROSS, 5)]], [[(ACROSS, 5)]]]).spans([0, 0])
    assert [span.tensor for span in spans if span.lane == ACROSS] == [0, 1]


def _greedy(backward: Sequence[int], options: Sequence[Sequence[Chain]], numel: Sequence[int]) -> list[int]:
    """Algorithm 1, word by word, with all options: the choice of each tensor by F over all of them."""

    def f(strategy: Sequence[int]) -> int:
        return simulate(backward, [options[tensor][number] for tensor, number in enumerate(strategy)])

    strategy = [0] * len(backward)
    for tensor in sorted(range(len(backward)), key=lambda i: (numel[i], i), reverse=True):
        best = min(range(len(options[0])), key=lambda number: f([*strategy[:tensor], number, *strategy[tensor + 1 :]]))
        other = [*strategy[:tensor], best, *strategy[tensor + 1 :]]
        strategy = other if f(other) < f(strategy) else strategy
    return strategy


def _realistic(seed: int) -> tuple[list[int], list[list[Chain]], list[int]]:
    """Return a case in which compressing takes time on a device and makes communication shorter, and sizes."""
    draw = random.Random(seed)
    numel = [draw.choice([10, 100, 1000]) for _ in range(draw.randint(2, 5))]
    backward = [draw.randint(1, 400) for _ in numel]

    def chains(size: int) -> list[Chain]:
        launch = 20
        return [
            [(ACROSS, 10 + size)],
            [(TRAINING, launch + size // 10), (ACROSS, 10 + size // 20), (TRAINING, launch)],
            [(HOST, launch + size // 3), (ACROSS, 10 + size // 20), (HOST, launch)],
        ]

    return backward, [chains(size) for size in numel], numel


@pytest.mark.parametrize("seed", range(60))
def test_algorithm_1_chooses_as_its_text_says(seed: int) -> None:
    """Property 1 leaves tensors out that communicate before a bubble: their F is no better, so F is the same."""
    backward, options, numel = _realistic(seed)
    found = problem(backward, options).select(numel, [0, 1], 0)
    slow = _greedy(backward, [choices[:2] for choices in options], numel)
    assert found.end_ns == simulate(backward, [options[i][number] for i, number in enumerate(slow)])


@pytest.mark.parametrize("seed", range(60))
def test_algorithm_2_is_the_best_choice_of_first_ones(seed: int) -> None:
    backward, options, numel = _realistic(seed)
    sizes = sorted(set(numel))
    native = NativeProblem(
        backward,
        [sizes.index(size) for size in numel],
        [[0], [1, 2, 3], [4, 2, 5]],
        [ACROSS, TRAINING, ACROSS, TRAINING, HOST, HOST],
        [
            [options[i][0][0][1], *(task[1] for task in options[i][1]), options[i][2][0][1], options[i][2][2][1]]
            for i in map(numel.index, sizes)
        ],
    )
    strategy = [1] * len(numel)
    found = native.offload(strategy, [0, 2, 2], 10_000)
    groups = [[i for i, size in enumerate(numel) if size == wanted] for wanted in sizes]
    ends = []
    for counts in itertools.product(*(range(len(group) + 1) for group in groups)):
        moved = {i for group, count in zip(groups, counts, strict=True) for i in group[:count]}
        ends.append(native.ends([[2 if i in moved else 1 for i in range(len(numel))]])[0])
    assert found.complete
    assert found.end_ns == min(ends) == native.ends([found.strategy])[0]
    few = native.offload(strategy, [0, 2, 2], 1)
    assert not few.complete or len(ends) == 1
    assert found.end_ns <= few.end_ns <= native.ends([strategy])[0]


@pytest.mark.parametrize("seed", range(40))
def test_the_local_search_comes_near_brute_force(seed: int) -> None:
    backward, options, _ = _realistic(seed)
    native = problem(backward, options)
    best = native.brute_force([0, 1, 2], 10_000)
    every = itertools.product(range(3), repeat=len(backward))
    assert best.end_ns == min(native.ends(list(every)))
    found = native.improve([0] * len(backward), [0, 1, 2], 10_000)
    assert best.end_ns <= found.end_ns <= best.end_ns * 1.05
    assert native.improve(best.strategy, [0, 1, 2], 10_000).end_ns == best.end_ns


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_is_dominated_is_never_better_alone(seed: int) -> None:
    """With a lane for itself no task waits: fewer and shorter tasks in the same order end no later."""
    draw = random.Random(seed)
    chains: list[Chain] = [
        [(draw.randrange(4), draw.randint(0, 4)) for _ in range(draw.randint(0, 5))] for _ in range(6)
    ]
    native = problem([1], [chains])
    kept = native.undominated(0, range(6))
    cheap = native.cheapest(0, range(6))
    assert set(cheap) <= set(kept)
    ends = native.ends([[number] for number in range(6)])
    assert min(ends) == min(ends[number] for number in kept) == min(ends[number] for number in cheap)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"backward_ns": [1]}, "as many durations as sizes"),
        ({"backward_ns": [], "size": []}, "at least 1"),
        ({"backward_ns": [1, -1]}, "negative"),
        ({"backward_ns": [1, 2**45]}, "more than 4 hours"),
        ({"size": [0, 1]}, "size without prices"),
        ({"options": []}, "no options"),
        ({"options": [[1]]}, "unknown kind"),
        ({"lane": [5]}, "lane"),
        ({"tracks": 0}, "tracks"),
        ({"tracks": 9}, "tracks"),
        ({"prices": [[1, 2]]}, "a price for each kind"),
        ({"prices": [[-1]]}, "negative"),
    ],
)
def test_bad_problems(changed: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"backward_ns": [1, 1], "size": [0, 0], "options": [[0]], "lane": [ACROSS], "prices": [[1]]}
    with pytest.raises(ConfigError, match=words):
        NativeProblem(**(good | changed))


def test_bad_strategies() -> None:
    native = NativeProblem([1, 1], [0, 0], [[0]], [ACROSS], [[1]])
    for strategy in ([0], [0, 1], [0, -1]):
        with pytest.raises(ConfigError, match=r"strategy|no such option"):
            native.ends([strategy])
        with pytest.raises(ConfigError, match=r"strategy|no such option"):
            native.spans(strategy)
        with pytest.raises(ConfigError, match=r"strategy|no such option"):
            native.offload(strategy, [0], 1)
        with pytest.raises(ConfigError, match=r"strategy|no such option"):
            native.improve(strategy, [0], 1)
    for among in ([1], [-1]):
        with pytest.raises(ConfigError, match="no such option"):
            native.improve([0, 0], among, 1)
        with pytest.raises(ConfigError, match="no such option"):
            native.select([1], among, 0)
        with pytest.raises(ConfigError, match="no such option"):
            native.brute_force(among, 10)
    with pytest.raises(ConfigError, match="too many"):
        native.brute_force([0, 0], 3)
    with pytest.raises(ConfigError, match="number of elements"):
        native.select([], [0], 0)
    with pytest.raises(ConfigError, match="twin"):
        native.offload([0, 0], [], 1)
    with pytest.raises(ConfigError, match="no such size"):
        native.cheapest(1, [0])
