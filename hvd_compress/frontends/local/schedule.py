"""When what is exchanged: synchronous steps first, then rounds of local steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hvd_compress.checks import check_whole
from hvd_compress.frontends.local import fragments
from hvd_compress.frontends.local.arguments import Deadline, Every
from hvd_compress.frontends.local.auto import Auto, cosine_of_a_step
from hvd_compress.frontends.local.clock import Clock
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.frontends.local.settled import settle
from hvd_compress.frontends.local.turns import Turns

LOOK_AGAIN = 64
"""Synchronous steps after which "auto" asks whether they are still the best."""


class Schedule:
    """Counts the steps of an optimizer, and exchanges what is due before and after each.

    Attributes:
        steps: of the optimizer so far, and those that this rank has waited for others in finish().
        auto: what chooses the steps of rounds; None where the program does.
    """

    def __init__(
        self,
        rounds: Rounds,
        *,
        every: Every,
        start_after: int,
        delay: int,
        optimizer: torch.optim.Optimizer | None = None,
        deadline_s: Deadline = None,
    ) -> None:
        """Nothing is communicated.

        Args:
            every: local steps in a round; 1 is synchronous training.
            start_after: steps that are synchronous first.
            delay: steps after which what was launched lands: 0 waits for it at once. It lands before the next exchange
                begins, however soon that is.
            optimizer: of the parameters. Where steps become synchronous after local ones, ranks go on with the mean of
                what each remembers, as else the same gradients would move them apart.
            deadline_s: seconds of training in a round, after which this rank goes on as if it had taken the rest of its
                steps; or as many as the median rank takes for them.
        """
        self.auto = Auto(rounds.count, delay, rounds.world_size, tells=rounds.rank == 0) if every == "auto" else None
        self._rounds, self._every, self._start_after, self._delay = rounds, every, start_after, delay
        self._optimizer, self._deadline_s = optimizer, deadline_s
        self._turns = Turns(rounds.count)
        self.steps = 0
        self._place, self._length = 0, 0  # local steps of the round so far, and of all of it; 0 before the first
        self._lands_after = 0
        self._clock = Clock()
        self._cosine = 0.0  # between what two ranks move in a step, as this rank has reckoned it

    def before_step(self) -> bool:
        """Exchange gradients, where the step is synchronous; return whether it is."""
        begins = self.steps >= self._start_after and self._place == self._length
        if begins and not self._is_synchronous:
            self._clock.reset()
        self._clock.works()
        if begins:
            self._begin_round()
            self._clock.skip()
        if self._is_synchronous:
            self._rounds.reduce()
            self._clock.exchanges()
        return self._is_synchronous

    def after_step(self) -> None:
        """Begin and end exchanges that are due."""
        self._clock.works(steps=1)
        self._advance()
        while self._is_late():
            self._advance(is_own=False)

    def _is_late(self) -> bool:
        """Return whether another step would end closer to the next exchange's time than to the one after."""
        if self._deadline_s is None or self._is_synchronous:
            return False
        before, following = fragments.turn(self._place, self._length, self._rounds.count)
        if self._place == before:
            return False  # it has just been exchanged
        step_s = self._rounds.said.typical_step_s if self._deadline_s == "auto" else self._deadline_s / self._length
        # 0 before "auto" knows: one step of each, as all steps of the slowest rank would take too long.
        return step_s * (following - before) < self._clock.turn_s + self._clock.figures()[0] / 2

    def _advance(self, is_own: bool = True) -> None:
        self.steps += 1
        if self._is_synchronous:
            self._place = self._length
            return
        self._place += 1
        self._turns.step(is_own)
        self._rounds.unsettled = True
        if self._rounds.in_flight is not None and self.steps == self._lands_after:
            self._land()
        for fragment in fragments.due(self._place, self._length, self._rounds.count):
            if self._rounds.in_flight is not None:
                self._land()
            if self._rounds.said.is_over:  # perhaps by what has just landed
                return
            figures, weight = (*self._clock.figures(), self._cosine), self._turns.launch(fragment)
            self._clock.begin_turn()
            self._rounds.launch(
                fragment, lands_late=self._delay > 0, figures=figures, length=self._length, weight=weight
            )
            self._lands_after = self.steps + self._delay
            if not self._delay:
                self._land()

    @property
    def has_deadline(self) -> bool:
        """Whether ranks may take other numbers of steps."""
        return self._deadline_s is not None

    @property
    def begins_with_rounds(self) -> bool:
        """Whether no step is synchronous first, so that ranks without a batch have rounds to take part in."""
        return self._start_after == 0

    @property
    def settings(self) -> str:
        """What ranks must have alike, in words."""
        known = "a function" if callable(self._every) else self._every
        return f"every={known}, start_after={self._start_after}, delay={self._delay}"

    @property
    def place(self) -> str:
        """Where this rank stands, as ranks compare it when they meet."""
        place = "a synchronous one" if self._is_synchronous else f"{self._place} of a round of {self._length}"
        return f"{self.settings}, step {self.steps}, {place}"

    @property
    def _is_synchronous(self) -> bool:
        """Whether the step is, whose round has begun."""
        return self._length <= 1

    def _land(self) -> None:
        rounds, fragment = self._rounds, self._rounds.in_flight
        assert fragment is not None
        if rounds.land():
            self._turns.land(fragment)
        self._clock.exchanges(rounds.exchange_s if self._delay else None)
        if self.auto is not None:
            self.auto.measured(*rounds.said.figures)
            if rounds.said.report is not None:
                self._cosine = cosine_of_a_step(rounds.said.report.cosine, self._length)

    def _begin_round(self) -> None:
        before, self._place = self._length, 0
        if not self._rounds.said.some_leave:
            self._length = self._next_length()
        if before <= 1 < self._length:
            self._rounds.begin()
            self._turns.reset()
            self._clock.begin()
        elif before > 1 == self._length:
            self._rounds.meet()
            if self._rounds.said.some_leave:  # it brings no gradients any more: steps stay local, on all ranks
                self._length = before
            elif self._optimizer is not None:
                settle(self._optimizer, self._rounds.handle.session.gathering)

    def _next_length(self) -> int:
        if self.auto is not None:
            if self._length == 1 and self._clock.steps >= LOOK_AGAIN:
                self.auto.measured_synchronous(*self._rounds.gather(self._clock.figures()))
                self._clock.reset()
            return self.auto.choose()
        if not callable(self._every):
            assert not isinstance(self._every, str)
            return self._every
        found = self._every(self.steps)
        check_whole(f"every({self.steps})", found, 1)
        return found

    def leave(self) -> None:
        """Ranks are to meet anew: nothing is on its way after this."""
        fragment = self._rounds.in_flight
        if self._rounds.leave():
            assert fragment is not None
            self._turns.land(fragment)
        if self._is_synchronous:
            self._rounds.agreed.reset()

    def moment(self) -> dict[str, Any]:
        """Return where this rank stands, between two exchanges."""
        return {
            "steps": self.steps,
            "length": self._length,
            "exchanged": self._rounds.exchanged,
            "counted": self._rounds.counted,
            "turns": self._turns.state_dict(),
        }

    def meet(self, moment: Mapping[str, Any], agreed: Mapping[str, Any] | None, *, is_new: bool) -> tuple[bool, bool]:
        """Stand where another rank does, which is the furthest; the round of all is over.

        Args:
            moment: of that rank.
            agreed: its anchors, as Agreed returns them; None where all ranks have the same.
            is_new: whether this rank has come.

        Returns:
            Whether an exchange has ended there, and failed here; whether steps have become local there alone.
        """
        counts = not is_new and self._rounds.exchanged < moment["exchanged"] and moment["counted"]
        begins = self._is_synchronous and moment["length"] > 1
        if is_new or begins:
            self._turns.reset()
        if agreed is not None and is_new:
            self._rounds.agreed.load_state_dict(agreed)
            self._rounds.agreed.return_to()
        elif agreed is not None and counts:
            fragment = self._rounds.catch_up(agreed)
            if fragment is not None:
                self._turns.land(fragment)
        self.steps, self._length = moment["steps"], moment["length"]
        self._place = self._length
        self._turns.meet(moment["turns"])
        self._rounds.exchanged = moment["exchanged"]
        self._clock.skip()
        self._clock.begin_turn()
        return counts, begins

    def renew(self, rounds: Rounds, **how: bool) -> None:
        """Exchange over other ranks. `how`: as Rounds.renew()."""
        self._rounds.renew(rounds, **how)
        self._rounds = rounds

    def end_round(self) -> None:
        """All ranks have met: exchange what they have learned, each in as many steps as it has taken. Collective."""
        taken = self._rounds.handle.session.gathering.of_all([self._turns.own], "steps of ranks that have met")
        if not self._is_synchronous and any(own for (own,) in taken):
            for fragment in range(self._rounds.count):
                self._rounds.launch(fragment, length=self._length, weight=self._turns.launch(fragment))
                if self._rounds.land():
                    self._turns.land(fragment)
        self._clock.skip()

    def rests(self, is_over: bool) -> None:
        """The program does what is no training: it begins, or is over."""
        if is_over:
            self._clock.skip()
        else:
            self._clock.works()

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the round, and the state of rounds."""
        if self._is_synchronous:
            self._rounds.agreed.reset()
        place = {"steps": self.steps, "place": self._place, "length": self._length, "lands_after": self._lands_after}
        return {**place, "turns": self._turns.state_dict(), "rounds": self._rounds.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what state_dict() gave. Raises as Rounds.load_state_dict()."""
        self._rounds.load_state_dict(state["rounds"])
        self.steps, self._lands_after = state["steps"], state["lands_after"]
        self._place, self._length = state["place"], state["length"]
        if "turns" in state:  # not in those of earlier versions, whose ranks took all steps
            self._turns.load_state_dict(state["turns"])
        if self.auto is not None and self._length:
            self.auto.go_on(self._length)

    def finish(self) -> None:
        """After the last step of this rank: take part in rounds until all have come to their last.

        Then ranks agree on all parameters. While steps are synchronous, all have taken as many, and agree; where local
        ones would come next, others may have taken some.

        Raises ReplicaError where they do not, as some parameters are not finite.
        """
        if self._is_synchronous and self.steps >= self._start_after:
            self._begin_round()
        if self._is_synchronous:
            self._place = self._length
            return
        self._rounds.said.leaving = True
        while not self._rounds.said.is_over:
            if self._place == self._length:
                self._begin_round()
            self._advance(is_own=False)
        self._rounds.unsettled = False
        self._rounds.said.reset()
        self._rounds.said.require_agreement()
        self._clock.skip()
