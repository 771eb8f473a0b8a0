"""Timelines of strategies and searches among them, in C++. All times are whole nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvd_compress.errors import ConfigError
from hvd_compress.native.module import compiled


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        strategy: the number of an option for each tensor.
        end_ns: F of it.
        simulations: of timelines that it took.
        complete: whether all was looked at that there was; otherwise the budget of simulations ended it.
    """

    strategy: tuple[int, ...]
    end_ns: int
    simulations: int
    complete: bool


@dataclass(frozen=True)
class Span:
    """A task as it ran: the how manyth of its tensor (-1: the computation), on which lane, from when to when."""

    tensor: int
    task: int
    lane: int
    start_ns: int
    end_ns: int


class NativeProblem:
    """Tensors in backward order, and options as lists of tasks. csrc/planner/timeline.hpp says how a timeline runs."""

    def __init__(
        self,
        backward_ns: Sequence[int],
        size: Sequence[int],
        options: Sequence[Sequence[int]],
        lane: Sequence[int],
        prices: Sequence[Sequence[int]],
        tracks: int = 1,
    ) -> None:
        """`size`: of each tensor, a row of `prices`, which has a duration for each kind of task; 0 leaves a task out.
        `options`: the kinds of tasks of each. `lane`: of each kind. `tracks`: how many latencies may pass at a time.

        Raises:
            ConfigError: an index or a duration is out of range.
        """
        arguments = (
            list(backward_ns),
            list(size),
            [list(kinds) for kinds in options],
            list(lane),
            [list(row) for row in prices],
            tracks,
        )
        self._problem = _checked(lambda: compiled.PlannerProblem(*arguments))

    def undominated(self, size: int, among: Sequence[int]) -> list[int]:
        """Return those options that no other of `among` surely beats, for tensors of a size."""
        found: list[int] = _checked(lambda: self._problem.undominated(size, list(among)))
        return found

    def cheapest(self, size: int, among: Sequence[int]) -> list[int]:
        """Return those options for which no other of `among` keeps every lane busy for a shorter time."""
        found: list[int] = _checked(lambda: self._problem.cheapest(size, list(among)))
        return found

    def times(self, size: int) -> list[int]:
        """Return what the tasks of each option take, one after the other, for a tensor of a size without others."""
        found: list[int] = _checked(lambda: self._problem.times(size))
        return found

    def ends(self, strategies: Sequence[Sequence[int]]) -> list[int]:
        """Return F of each strategy."""
        found: list[int] = _checked(lambda: self._problem.ends([list(strategy) for strategy in strategies]))
        return found

    def spans(self, strategy: Sequence[int]) -> list[Span]:
        """Return all tasks of a strategy's timeline, in the order in which they start."""
        return [Span(*row) for row in _checked(lambda: self._problem.spans(list(strategy)))]

    def select(self, numel: Sequence[int], among: Sequence[int], first: int) -> Found:
        """Return what Espresso's Algorithm 1 chooses, beginning with option `first` for all. `numel`: by size."""
        return _found(lambda: self._problem.select(list(numel), list(among), first))

    def offload(self, strategy: Sequence[int], twin: Sequence[int], most: int) -> Found:
        """Return what Espresso's Algorithm 2 chooses. `twin`: of each option, that on the host, or itself."""
        return _found(lambda: self._problem.offload(list(strategy), list(twin), most))

    def improve(self, strategy: Sequence[int], among: Sequence[int], most: int) -> Found:
        """Return where a local search ends that begins with a strategy."""
        return _found(lambda: self._problem.improve(list(strategy), list(among), most))

    def brute_force(self, among: Sequence[int], most: int) -> Found:
        """Return the best of all strategies. Raises ConfigError where those are more than `most`."""
        return _found(lambda: self._problem.brute_force(list(among), most))


def _found(search: Any) -> Found:
    strategy, end_ns, simulations, complete = _checked(search)
    return Found(tuple(strategy), end_ns, simulations, complete)


def _checked(call: Any) -> Any:
    """Call what may raise ValueError or TypeError for what it was given."""
    try:
        return call()
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"a planning problem: {str(error).splitlines()[0]}") from None
