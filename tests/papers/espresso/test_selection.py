"""The properties and the lemma by which Espresso's algorithms leave strategies out (section 4.4), by hand."""

from __future__ import annotations

import pytest

from hvd_compress.papers.espresso.kernels import NativeProblem

TRAINING, HOST, WITHIN, ACROSS = range(4)


def by_size(backward: list[int], plain: list[int]) -> NativeProblem:
    """Return tensors of different sizes that communicate for so long, or compress for 1 and communicate for 1."""
    prices = [[long, 1, 1] for long in plain]
    return NativeProblem(backward, list(range(len(plain))), [[0], [1, 2]], [ACROSS, TRAINING, ACROSS], prices)


class TestProperty1:
    def test_before_a_bubble_nothing_is_tried(self) -> None:
        # ready at 1, there at 4; the second is ready at 10, and there at 12. One more timeline: the second compressed
        found = by_size([1, 9], [3, 2]).select([10, 1], [0, 1], 0)
        assert (found.strategy, found.end_ns) == ((0, 0), 12)
        first_alone = by_size([1, 9], [3, 2]).ends([[1, 0]])[0]
        assert first_alone == 13  # it delays the second
        assert found.simulations == 1

    def test_a_bubble_that_a_choice_makes_counts(self) -> None:
        # plain: ready at 1, 3, 6; the link is busy from 1 to 12 without a bubble
        problem = by_size([1, 2, 3], [3, 6, 2])
        assert problem.ends([[0, 0, 0]]) == [12]
        # the second and largest one compressed: from 3 to 4, there at 5; the third, ready at 7, makes a bubble, until 9
        assert problem.ends([[0, 1, 0]]) == [9]
        found = problem.select([2, 3, 1], [0, 1], 0)
        assert (found.strategy, found.end_ns) == ((0, 1, 0), 9)
        # the first one is before that bubble and is not tried: F with it would be 10. The third has a bound of 9
        assert problem.ends([[1, 1, 0]]) == [10]
        assert found.simulations == 2

    def test_who_is_compressed_before_a_bubble_is_tried(self) -> None:
        """The property is about tensors without compression; here all begin with it."""
        problem = by_size([1, 9], [3, 2])
        assert problem.ends([[1, 1], [0, 1]]) == [13, 12]
        found = problem.select([10, 1], [0, 1], 1)
        assert (found.strategy[0], found.end_ns) == (0, 12)


@pytest.mark.parametrize(("numel", "strategy"), [([9, 1], (1, 0)), ([1, 9], (0, 1)), ([5, 5], (0, 1))])
def test_property_2_larger_ones_first_and_of_equals_the_last(numel: list[int], strategy: tuple[int, int]) -> None:
    """Either of the two ends at 7 with compression, and both at 9: who comes first is compressed."""
    sizes = sorted(set(numel), reverse=True)
    of = [sizes.index(size) for size in numel]
    problem = NativeProblem([2, 0], of, [[0], [1, 2]], [ACROSS, TRAINING, ACROSS], [[4, 3, 1]] * len(sizes))
    assert problem.ends([[0, 0], [1, 0], [0, 1], [1, 1]]) == [10, 7, 7, 9]
    found = problem.select(sizes, [0, 1], 0)
    assert (found.strategy, found.end_ns) == (strategy, 7)


def test_lemma_1_the_first_ones_of_a_group_are_offloaded() -> None:
    """Of three equal tensors one gains by the CPU: the first, farthest from the output layer in the paper's words."""
    lanes = [TRAINING, ACROSS, HOST, ACROSS]
    problem = NativeProblem([2, 2, 2], [0, 0, 0], [[0, 1], [2, 3]], lanes, [[1, 1, 4, 1]])
    one_each = problem.ends([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert one_each[0] == min(one_each) < one_each[2]
    found = problem.offload([0, 0, 0], [1, 1], 100)
    assert found.strategy == (1, 0, 0)
    assert found.end_ns == one_each[0]


def test_what_is_bounded_from_below_is_not_simulated() -> None:
    """A lane that alone is busy for as long as the best step takes says enough, of one tensor and of a strategy."""
    lanes = [TRAINING, ACROSS, HOST, ACROSS]
    problem = NativeProblem([1, 1], [0, 0], [[1], [0, 1], [2, 3]], lanes, [[9, 3, 9, 3]])
    assert problem.ends([[0, 0], [1, 0], [0, 1], [2, 2]]) == [7, 16, 14, 22]
    assert problem.select([1], [0, 1], 0).simulations == 1
    assert problem.select([1], [0, 2], 0).simulations == 1
    assert problem.offload([0, 0], [2, 1, 2], 100).simulations == 2, "the strategy that it begins with, twice"
    # What is below the best is: two options of which one is better.
    faster = NativeProblem([1, 1], [0, 0], [[1], [0, 1], [0, 2]], [TRAINING, ACROSS, ACROSS], [[1, 3, 1]])
    found = faster.select([1], [0, 2], 0)
    assert found.end_ns == min(faster.ends([[0, 0], [2, 0], [0, 2], [2, 2]])) < 7
    assert found.simulations > 1


def test_a_budget_ends_a_search() -> None:
    problem = by_size([1] * 6, [9, 8, 7, 6, 5, 4])
    plain = [0] * 6
    whole = problem.improve(plain, [0, 1], 100_000)
    assert whole.complete
    assert whole.end_ns == problem.brute_force([0, 1], 64).end_ns < problem.ends([plain])[0]
    for most in range(8):
        found = problem.improve(plain, [0, 1], most)
        assert not found.complete
        assert found.simulations - 1 <= most + 1
        assert found.end_ns >= whole.end_ns
    assert problem.improve(plain, [0, 1], 0).strategy == tuple(plain)


def test_a_budget_ends_the_offloading_of_groups() -> None:
    lanes = [TRAINING, ACROSS, HOST, ACROSS]
    problem = NativeProblem([2] * 4, [0, 1, 0, 1], [[0, 1], [2, 3]], lanes, [[1, 1, 4, 1], [2, 1, 5, 1]])
    every = problem.offload([0] * 4, [1, 1], 9)  # 3 x 3 choices
    assert every.complete
    assert every.end_ns < problem.ends([[0] * 4])[0]
    none = problem.offload([0] * 4, [1, 1], 1)
    assert (none.complete, none.strategy, none.simulations) == (False, (0,) * 4, 1)
    some = problem.offload([0] * 4, [1, 1], 2)
    assert not some.complete
    assert some.simulations <= 2 + 3, "a group that is begun is ended, and none is begun after it"


def test_what_compresses_on_the_cpu_already_is_no_choice() -> None:
    """Half of the tensors are there: 3 choices, as of two tensors alone, not 3 times 3."""
    lanes = [TRAINING, ACROSS, HOST, ACROSS]
    problem = NativeProblem([2] * 4, [0] * 4, [[0, 1], [2, 3]], lanes, [[1, 1, 4, 1]])
    assert problem.offload([0, 1, 0, 1], [1, 1], 3).complete
    assert not problem.offload([0, 1, 0, 1], [1, 1], 2).complete
