"""What ranks tell each other of AR-Topk in their steps, and the choice of workers that follows, for all buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from hvd_compress.controller.workers import STAR, Step, WorkerChooser, WorkerPolicy
from hvd_compress.cost.paths import Path


@dataclass(frozen=True)
class Sight:
    """What this rank saw of a bucket in a step: squared norms of what it sent and of what is left, and seconds.

    `root` is the rank whose indices were used: the same on all ranks.
    """

    root: int
    sent: float
    left: float
    seconds: float


class Workers:
    """STAR or VAR for each bucket for which that is open.

    In the candidates of a bucket "star" stands for both; way() puts in what is used. Ranks tell each other three
    numbers a watched step and bucket, along with the times of a window.
    """

    def __init__(self, open_: Sequence[bool], world_size: int) -> None:
        """`open_`: by bucket, whether there is a choice."""
        policy = WorkerPolicy()
        self._choosers = {n: WorkerChooser(world_size, policy) for n, is_open in enumerate(open_) if is_open}
        self._seen: list[dict[int, Sight]] = []  # by step since the last report, and bucket
        self._told: list[dict[int, Sight]] = []  # in the last report
        self._mixed: set[int] = set()

    def way(self, number: int, candidate: Path) -> Path:
        """Return how a bucket travels by a candidate."""
        if number not in self._choosers or candidate.scheme != STAR:
            return candidate
        return replace(candidate, scheme=self._choosers[number].used)

    def ways(self, candidates: Sequence[Path | None]) -> list[Path | None]:
        """Return the same of all buckets, None for those whose candidate is."""
        return [way if way is None else self.way(number, way) for number, way in enumerate(candidates)]

    def reason(self, number: int, candidate: Path, reason: str) -> str:
        """Return why it travels so, given why the candidate was chosen."""
        if number not in self._choosers or candidate.scheme != STAR:
            return reason
        chooser = self._choosers[number]
        words = f"{chooser.used.upper()} is tried, to be compared" if chooser.trying else chooser.reason
        return f"{reason}; {words}"

    def gain(self, number: int, candidate: Path) -> float:
        """Return the gain that was last seen, NaN where none was."""
        if number not in self._choosers or candidate.scheme != STAR:
            return float("nan")
        return self._choosers[number].gain

    def watches(self, number: int, candidate: Path | None) -> bool:
        """Whether a bucket's exchange is to be watched in a step that uses `candidate`."""
        wanted = number in self._choosers and candidate is not None and candidate.scheme == STAR
        return wanted and self._choosers[number].awake

    def mixed(self, number: int) -> bool:
        """Whether the steps that ranks told each other about last were not all as is chosen now."""
        return number in self._mixed

    def restart(self, number: int) -> None:
        """A round of trials begins for a bucket."""
        if number in self._choosers:
            self._choosers[number].restart()
            self._drop(number)

    def wake(self, number: int) -> None:
        """A bucket sends another ratio: steps that were seen are not those to come."""
        if number in self._choosers:
            self._choosers[number].wake()
            self._drop(number)

    def saw(self, sights: Sequence[Sight | None]) -> None:
        """Take what this rank saw in a step, by bucket; None where it was not watched, on all ranks alike."""
        if self._choosers:
            self._seen.append({number: sight for number, sight in enumerate(sights) if sight is not None})

    def forget(self) -> None:
        """What was seen and not told yet has been taken back."""
        self._seen = []

    def told(self) -> list[float]:
        """Return what is to be told of the steps since the last time."""
        self._told, self._seen = self._seen, []
        return [value for step in self._told for s in step.values() for value in (s.sent, s.left, s.seconds)]

    def take(
        self, told: Sequence[Sequence[float]], step_s: float, spare_s: Sequence[float]
    ) -> list[tuple[int, WorkerChooser]]:
        """Take what all ranks told; return the buckets for which something was decided.

        Args:
            step_s: the duration of a step.
            spare_s: by bucket, by how much AR-Topk was faster than all else.
        """
        readers = [iter(rank) for rank in told]
        steps: dict[int, list[Step]] = {}
        for step in self._told:
            for number, sight in step.items():
                ranks = [tuple(islice(reader, 3)) for reader in readers]
                sent, left, seconds = zip(*ranks, strict=True)
                held = tuple(a + b for a, b in zip(sent, left, strict=True))
                steps.setdefault(number, []).append(Step(sight.root, sent, held, sum(seconds) / len(ranks)))
        for number, chooser in self._choosers.items():
            chooser.pass_by(sum(number not in step for step in self._told))
        self._told, self._mixed = [], set()
        decided = []
        for number, seen in steps.items():
            chooser = self._choosers[number]
            used, trying = chooser.used, chooser.trying
            decides = chooser.take(seen, step_s, spare_s[number])
            if decides:
                decided.append((number, chooser))
            if trying or (decides and used != chooser.used):
                self._mixed.add(number)
            if used != chooser.used:
                self._drop(number)
        return decided

    def _drop(self, number: int) -> None:
        """What was seen and not told yet went the way of before."""
        for step in self._seen:
            step.pop(number, None)
