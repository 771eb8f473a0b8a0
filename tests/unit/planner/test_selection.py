"""The properties and the lemma by which Espresso's algorithms leave strategies out (section 4.4), by hand."""

from __future__ import annotations

import pytest

from hvd_compress.native.planner import NativeProblem

TRAINING, HOST, WITHIN, ACROSS = range(4)


def by_size(backward: list[int], plain: list[int]) -> NativeProblem:
    """Return a problem of tensors of different sizes, that communicate for so long, or compressed in 1 for 1."""
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
        """The property is about tensors without compression. All begin with it here."""
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
