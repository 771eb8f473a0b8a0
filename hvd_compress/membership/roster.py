"""Who meets next: decided from what members and their connections say. It knows no sockets, and no clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """Where a process is."""

    WAITING = "ready to meet others"
    WITHIN = "in the current meeting"
    FINISHED = "done with its training"


@dataclass
class Seat:
    """A process of the job.

    Attributes:
        number: by which it is known here; a process that comes back has another one.
        name: what messages call it.
        rank: in the last meeting that it was in; None before its first.
        leaves: whether it has answered that it knows its meeting to be over.
        has_trained: whether it has all that others know of the training.
        knows_end: whether it was told that the job has ended.
    """

    number: int
    name: str
    rank: int | None = None
    stage: Stage = Stage.WAITING
    leaves: bool = False
    has_trained: bool = False
    knows_end: bool = False


@dataclass(frozen=True)
class Over:
    """Tell all members that a meeting is over: what runs ends, and they come to the next one."""

    generation: int
    why: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Meet:
    """Let these meet, in the order of their ranks."""

    generation: int
    members: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Drop:
    """Tell a member that the others go on without it."""

    member: int
    why: str


@dataclass(frozen=True)
class End:
    """Tell all that the job ends."""

    why: str


Order = Over | Meet | Drop | End


class Roster:
    """The processes of a job, and whether they have met.

    A meeting goes on until one of its members ends, says that an exchange has failed, or somebody has come. Then it is
    over for all, and those that are left meet again, with whoever has come, as soon as all of them are ready.
    """

    def __init__(self, wanted: int, least: int, most: int, late_s: float, patience_s: float) -> None:
        """Nobody has come yet.

        Args:
            wanted: how many the first meeting waits for.
            least: fewer than these do not go on.
            most: more than these wait until some have left.
            late_s: how long a member may take to answer that a meeting is over.
            patience_s: how long it may then take to be ready for the next one, as it may be computing, and how long too
                few wait for others.
        """
        self._wanted, self._least, self._most = wanted, least, most
        self._late_s, self._patience_s = late_s, patience_s
        self._seats: dict[int, Seat] = {}
        self.generation = 0
        self._over_since: float | None = None
        self._short_since: float | None = None
        self._why = "the job begins"
        self.is_finishing = self._has_begun = False
        self.ended = ""

    def came(self, number: int, name: str) -> None:
        """A process is ready to meet others."""
        self._seats[number] = Seat(number, name)

    def ready(self, number: int, now: float) -> list[Order]:
        """A member is ready for the next meeting: its last one is over, for itself at least."""
        seat = self._seats[number]
        orders = self._end(f"{self._named(seat)} has left its meeting", now) if seat.stage is Stage.WITHIN else []
        seat.stage = Stage.WAITING
        return orders

    def failed(self, number: int, generation: int, why: str, now: float) -> list[Order]:
        """An exchange has failed on a member, in a meeting."""
        if generation != self.generation or self._seats[number].stage is not Stage.WITHIN:
            return []
        return self._end(f"{self._named(self._seats[number])}: {why}", now)

    def leaves(self, number: int, generation: int) -> None:
        """A member knows that a meeting is over, and comes to the next one when it can."""
        self._seats[number].leaves = generation == self.generation

    def rank_in(self, number: int, generation: int) -> int | None:
        """Return a member's rank in a meeting; None where that is over, or it has no part in it."""
        seat = self._seats.get(number)
        is_within = seat is not None and seat.stage is Stage.WITHIN and generation == self.generation
        return seat.rank if seat is not None and is_within else None

    def trained(self, number: int) -> None:
        """A member has, or goes on with, all that others know of the training."""
        seat = self._seats[number]
        seat.has_trained = self._has_begun = True
        if seat.stage is Stage.FINISHED:  # it begins another one
            seat.stage, self.is_finishing = Stage.WITHIN, False

    def finished(self, number: int) -> None:
        """A member has done all that it was to do."""
        self._seats[number].stage, self.is_finishing = Stage.FINISHED, True

    def left(self, number: int, why: str, now: float) -> list[Order]:
        """The connection with a process is gone."""
        seat = self._seats.pop(number, None)
        if seat is None or seat.stage is not Stage.WITHIN:
            return []
        return self._end(f"{self._named(seat)} {why}", now)

    def decide(self, now: float) -> list[Order]:
        """Return what follows from what has come to pass, and from the time, in seconds of any clock."""
        within, waiting = self._at(Stage.WITHIN), self._at(Stage.WAITING)
        if self.ended:
            return self._drop([each for each in waiting if not each.knows_end], self.ended)
        if self.is_finishing and (newcomers := [each for each in waiting if not each.has_trained]):
            return self._drop(newcomers, "the training has ended")
        if self._has_begun and not self.is_finishing and not any(each.has_trained for each in self._seats.values()):
            return self._end_job(f"no rank is left that has trained. Last: {self._why}")
        if within and self._over_since is None:
            newcomers = waiting[: max(0, self._most - len(within))]
            if newcomers and not self.is_finishing:
                return self._end(" and ".join(f"{each.name} has come" for each in newcomers), now)
            return []
        if within:
            return self._without_late(within, now)
        return self._next(waiting, now)

    def _without_late(self, within: Sequence[Seat], now: float) -> list[Order]:
        assert self._over_since is not None
        waited_s, found = now - self._over_since, list[Order]()
        for each in within:
            limit_s, what = (
                (self._patience_s, "--elastic-timeout") if each.leaves else (self._late_s, "HVD_COMPRESS_TIMEOUT_S")
            )
            if waited_s >= limit_s:
                del self._seats[each.number]
                found.append(Drop(each.number, f"the others have waited {limit_s:g} s ({what}) for it, and go on"))
        return found

    def _next(self, waiting: Sequence[Seat], now: float) -> list[Order]:
        if not waiting:
            return []
        enough = 1 if self.is_finishing else self._wanted if self.generation == 0 else self._least
        if len(waiting) < enough:
            if self._short_since is None:
                self._short_since = now
            if now - self._short_since < self._patience_s:
                return []
            if len(waiting) < self._least:
                return self._end_job(
                    f"{len(waiting)} processes are there, and --min-np is {self._least}: nobody has come within "
                    f"{self._patience_s:g} s (--elastic-timeout). Last: {self._why}"
                )
        chosen = sorted(waiting, key=lambda seat: (seat.rank is None, seat.rank or 0, seat.number))[: self._most]
        self.generation += 1
        for rank, seat in enumerate(chosen):
            seat.rank, seat.stage, seat.leaves = rank, Stage.WITHIN, False
        self._over_since = self._short_since = None
        return [Meet(self.generation, tuple(seat.number for seat in chosen), self._why)]

    def _drop(self, seats: Sequence[Seat], why: str) -> list[Order]:
        for each in seats:
            del self._seats[each.number]
        return [Drop(each.number, why) for each in seats]

    def _end_job(self, why: str) -> list[Order]:
        self.ended = why
        for each in self._seats.values():
            each.knows_end = True
        return [End(why)]

    def _end(self, why: str, now: float) -> list[Order]:
        if self._over_since is not None:
            return []
        self._over_since, self._why = now, why
        return [Over(self.generation, why, tuple(seat.number for seat in self._at(Stage.WITHIN)))]

    def _at(self, stage: Stage) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.stage is stage]

    def _named(self, seat: Seat) -> str:
        return seat.name if seat.rank is None else f"rank {seat.rank} ({seat.name})"
