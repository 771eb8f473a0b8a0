"""How the choice for one bucket is made, and how long it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """How a round of trials goes. The defaults are those of the first one, in which there is time.

    Attributes:
        margin: candidates that are predicted to take up to so many times the fastest one are tried.
        most: so many of them at first, the one in use among them.
        related: the ways to broadcast indices are tried of an AR-Topk that took up to this many times the shortest.
        near: a candidate reaches the final if it took up to this many times the shortest of all; half of what that is
            above 1 in the second final, a third in the third one.
        finalists: so many at most.
        final: steps in a row of each of them. STAR has another root in each step, which some ways feel.
        steps: of the round at most, of all buckets together; finals go on until they are used up or one is left. A
            bucket whose round began beside longer trials of others may use up more in those. Where a round shows that
            another ratio is better, the bucket begins another round.
    """

    margin: float = 2.0
    most: int = 8
    related: float = 1.6
    near: float = 1.4
    finalists: int = 6
    final: int = 4
    steps: int = 64


LATER = Round(margin=1.5, most=6, related=1.3, near=1.3, finalists=4, final=2, steps=16)
"""Curves were bent to what the network is seen to do, so fewer ways are promising; and there is less time. Steps must
be left: for other broadcasts, which make more of a difference than what is predicted to be slower, and curves that were
bent tell least of; and for a final. To try more ways tells more than to try two of them for longer."""


@dataclass(frozen=True)
class Policy:
    """How the choice is made.

    Attributes:
        first, later: how rounds go, the first one and those in which there is a choice already.
        hysteresis: by how much a candidate must be faster than the one in use to replace it.
        drift: how far the time of the candidate in use may leave what was measured, as a factor, in two windows in a
            row, before the network is measured.
        evident: the factor for which one window is enough, before there were false alarms; by which a first window
            denies the trials, and a final those before it; and by which one is too short where VAR was on trial.
        broken: the factor for which one window counts for two, for which what is odd is not what was looked into, and
            for which one is enough where VAR was on trial, which may take longer.
        calm: each false alarm, after which the network was found to be what it was, doubles the windows that the next
            one takes; so many times at most, to 2^calm windows. For what lasts for those there is a round all the same;
            the next time for what lasts twice as long, and so on, as many times.
        forgets: each time so many windows in a row had nothing odd, one doubling of either is taken back.
        least_s: times that differ by less than this, in seconds, are not told apart.
    """

    first: Round = Round()
    later: Round = LATER
    hysteresis: float = 0.03
    drift: float = 1.25
    evident: float = 1.5
    broken: float = 2.5
    calm: int = 3
    forgets: int = 16
    least_s: float = 0.0003
