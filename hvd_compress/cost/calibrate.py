"""Measuring the curves of the engine in use, a bounded number of collectives at a time, all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

from hvd_compress.cost.curves import Curve, Curves, Key
from hvd_compress.cost.formulas import VERBS
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

KIB = 1024
SIZES = tuple(size * KIB for size in (1, 256, 1024, 64, 4096, 8, 16384))
"""Bytes of a rank's tensor, in the order of measuring: first what says most, later what lies between."""

BUDGET_S = 3.0
SAMPLES = 5


class Calibrator:
    """Measures every algorithm that an engine can force, and "auto", at one size after the other.

    All ranks make one and call `advance` at the same places, in the thread that launches the collectives. After each
    measurement the ranks exchange their times (16 bytes), so all do the same measurements and hold the same curves.
    That exchange also brings them in step for the next one.
    A rank that does not take part leaves the others waiting in the engine, as in any collective: the caller's time-out
    ends that.

    The budget is kept except for the first two sizes, without which there is no curve: 26 collectives of 1 and of
    256 KiB. A measurement that would exceed it, as far as the curve so far can tell, is left out.

    Attributes:
        spent_s: seconds spent so far, the longest over ranks.
    """

    def __init__(
        self,
        engine: Engine,
        budget_s: float = BUDGET_S,
        sizes: Sequence[int] = SIZES,
        samples: int = SAMPLES,
        keys: Sequence[Key] | None = None,
    ) -> None:
        if not budget_s >= 0 or samples < 1 or not sizes or min(sizes) < 8 or (keys is not None and not keys):
            raise ConfigError(f"cannot calibrate {samples} times within {budget_s} s at sizes {list(sizes)}")
        self._engine, self._budget_s, self.spent_s = engine, budget_s, 0.0
        self._keys = tuple(keys) if keys is not None else measurable(engine)
        self._times: dict[Key, dict[int, list[float]]] = {key: {} for key in self._keys}
        self._owed = set(sizes[:2])
        self._plan = self._planned(sizes, samples)
        self._turn = 0
        self._exchange_s = 0.0
        self._warm = False
        self.done = False

    def advance(self, measurements: int = 1) -> bool:
        """Do up to so many measurements. Returns whether the calibration is complete. Collective."""
        if not self._warm:
            self._warm = True
            self._warm_up()
        for _ in range(measurements):
            following = next(self._plan, None)
            if following is None:
                self.done = True
                break
            self._measure(*following)
        return self.done

    def _warm_up(self) -> None:
        """Let every rank talk to every other: transports connect when the first message is sent."""
        with self._engine.aside():
            self._engine.alltoall([torch.zeros(1, device=self._engine.device)] * self._engine.world_size)

    def curves(self) -> Curves:
        """Return a curve for each key that was measured so far. The same on all ranks.

        Through the shortest of each size's samples: nothing but noise makes one longer, the start of a connection most.
        """
        shortest = {
            key: {size: min(samples) for size, samples in by_size.items()}
            for key, by_size in self._times.items()
            if by_size
        }
        return Curves(self._engine.world_size, {key: Curve.through(points) for key, points in shortest.items()})

    def _planned(self, sizes: Sequence[int], samples: int) -> Iterator[tuple[Key, int]]:
        """Yield what to measure next, as long as the budget lasts: each point once, some more often, then all again.

        Points that are so quick that others lose nothing are measured several times at once: they are the noisy ones.
        """
        share_s = self._budget_s / (len(self._keys) * len(sizes))
        for turn in range(samples):
            for size in sizes:
                for key in self._keys:
                    while self._wanted(key, size, turn, samples, share_s):
                        yield key, size

    def _wanted(self, key: Key, size: int, turn: int, samples: int, share_s: float) -> bool:
        have = self._times[key].get(size, [])
        if not have and size in self._owed:
            return True
        if len(have) >= samples or (len(have) > turn and sum(have) >= share_s):
            return False
        return self.spent_s + self._estimate(key, size) < self._budget_s

    def _estimate(self, key: Key, size: int) -> float:
        points = {known: min(samples) for known, samples in self._times[key].items()}
        return Curve.through(points).seconds(size) if points else 0.0

    def _measure(self, key: Key, size: int) -> None:
        engine, start = self._engine, time.perf_counter()
        with engine.aside() as calls:
            self._launch(key, size)
            seconds = calls[-1].seconds
            # The exchange itself belongs to the next measurement's share of the budget: it has not ended yet.
            mine = torch.tensor([seconds, time.perf_counter() - start + self._exchange_s], dtype=torch.float64)
            exchange = time.perf_counter()
            ranks = torch.stack(engine.control.allgather(mine, [2] * engine.world_size))
            self._exchange_s = time.perf_counter() - exchange
        # Ranks enter some message's time apart: what one gains the others wait, so the mean is that of a common start.
        # But the root of a broadcast is done when it has sent, as are all others in a gather: the last rank counts.
        each = ranks[:, 0].tolist()  # summed in one order on all ranks
        taken = max(each) if key[0] in ("broadcast", "gather") else fmean(each)
        self._times[key].setdefault(size, []).append(taken)
        self.spent_s += float(ranks[:, 1].max())

    def _launch(self, key: Key, size: int) -> None:
        verb, algorithm = key
        n, tensor = self._engine.world_size, torch.zeros(size // 4, device=self._engine.device)
        if verb == "allreduce":
            self._engine.allreduce(tensor, algorithm)
        elif verb == "broadcast":
            self._turn += 1  # AR-Topk's roots take turns, too
            self._engine.broadcast(tensor, self._turn % n, algorithm)
        elif verb == "allgather":
            self._engine.allgather(tensor, [tensor.numel()] * n, algorithm)
        elif verb == "reduce_scatter":
            self._engine.reduce_scatter(tensor)
        elif verb == "gather":
            self._engine.gather(tensor, 0, [tensor.numel()] * n)
        else:
            parts = torch.tensor_split(tensor, n)
            self._engine.alltoall(parts, [parts[self._engine.rank].numel()] * n)


def measurable(engine: Engine) -> tuple[Key, ...]:
    """Return verb and algorithm of everything that candidates are made of, on this engine. All-to-all aside."""
    verbs = ("broadcast", "allreduce", "allgather")
    return tuple((verb, name) for verb in verbs for name in ("auto", *engine.capabilities.forcible(verb)))


def plannable(engine: Engine) -> tuple[Key, ...]:
    """Return verb and algorithm of everything that a planned option is made of, on this engine.

    As the engine chooses; and allreduces that can be forced, of which the formulas know what they do.
    """
    can = engine.capabilities
    verbs = [verb for verb in VERBS if verb in can.verbs]
    return (*((verb, "auto") for verb in verbs), *(("allreduce", name) for name in can.forcible("allreduce")))


def calibrate(engine: Engine, budget_s: float = BUDGET_S) -> Curves:
    """Measure all curves at once, within `budget_s` seconds. Collective; the same curves on all ranks."""
    engine.locate()  # as a session does: what "auto" is depends on who shares a host
    calibrator = Calibrator(engine, budget_s)
    while not calibrator.advance(16):
        pass
    return calibrator.curves()


def matching(engine: Engine, saved: Sequence[Curves], factor: float = 2.0) -> Curves | None:
    """Return which curves of earlier jobs describe this network best: a few measurements lie within `factor` of them.

    None where no curves do. Collective, the same answer on all ranks; 9 collectives of 1, 64 and 256 KiB (the shortest
    of three each).
    """
    key = ("allreduce", "auto")
    calibrator = Calibrator(engine, float("inf"), (KIB, 64 * KIB, 256 * KIB), 3, [key])
    while not calibrator.advance(9):
        pass
    return nearest(calibrator.curves(), saved, factor)


def nearest(fresh: Curves, saved: Sequence[Curves], factor: float) -> Curves | None:
    """Return which of `saved` describes best what was measured just now; None where none does within `factor`."""
    found = min(saved, key=lambda curves: times_apart(fresh, curves), default=None)
    return found if found is not None and times_apart(fresh, found) <= factor else None


def times_apart(fresh: Curves, saved: Curves) -> float:
    """Return the largest factor between the points of `fresh` and what `saved` says of them."""
    ratios = [
        seconds / saved.seconds(*key, size)
        for key, curve in fresh.by_key.items()
        for size, seconds in zip(curve.sizes, curve.times, strict=True)
    ]
    return max(max(ratio, 1 / ratio) for ratio in ratios)
