"""Measuring collectives of the engine in use within a bounded time, all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

from hvd_compress.cost.curves import Curve, Curves, Key
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

KIB = 1024
SIZES = (KIB, 64 * KIB, 256 * KIB, 16 * KIB, 4096 * KIB)
"""Bytes of a rank's tensor, in the order of measuring: first what says most."""
SAMPLES = 3


class Calibrator:
    """Measures collectives at one size after the other.

    All ranks call `run` at the same place, in the thread that launches the collectives. After each measurement the
    ranks exchange their times (16 bytes), so all do the same measurements and hold the same curves. That exchange also
    brings them in step for the next one. A rank that does not take part leaves the others waiting in the engine, as in
    any collective: the caller's time-out ends that.

    The budget is kept except for the first two sizes, without which there is no curve. A measurement that would exceed
    it, as far as the curve so far can tell, is left out.

    Attributes:
        spent_s: seconds spent so far, the longest over ranks.
    """

    def __init__(
        self,
        engine: Engine,
        keys: Sequence[Key],
        budget_s: float,
        sizes: Sequence[int] = SIZES,
        samples: int = SAMPLES,
    ) -> None:
        """`keys`: what to measure, the same on all ranks. `samples`: how often, at most."""
        if not budget_s >= 0 or samples < 1 or not sizes or min(sizes) < 8 or not keys:
            raise ConfigError(f"cannot calibrate {samples} times within {budget_s} s at sizes {list(sizes)}")
        self._engine, self._keys, self._budget_s, self.spent_s = engine, tuple(keys), budget_s, 0.0
        self._sizes, self._samples = sizes, samples
        self._times: dict[Key, dict[int, list[float]]] = {key: {} for key in keys}
        self._turn = 0
        self._exchange_s = 0.0

    def run(self) -> Curves:
        """Return a curve for each key. Collective, the same on all ranks.

        Through the shortest of each size's samples: nothing but noise makes one longer, the start of a connection most.
        """
        with self._engine.aside():  # transports connect when the first message is sent: to every other rank
            self._engine.alltoall([torch.zeros(1, device=self._engine.device)] * self._engine.world_size)
        for key, size in self._planned():
            self._measure(key, size)
        return Curves(self._engine.world_size, {key: self._curve(key) for key in self._keys})

    def _curve(self, key: Key) -> Curve:
        return Curve.through({size: min(samples) for size, samples in self._times[key].items()})

    def _planned(self) -> Iterator[tuple[Key, int]]:
        """Yield what to measure next, as long as the budget lasts: each point once, some more often, then all again.

        Points that are so quick that others lose nothing are measured several times at once: they are the noisy ones.
        """
        for turn in range(self._samples):
            for size in self._sizes:
                for key in self._keys:
                    while self._wanted(key, size, turn):
                        yield key, size

    def _wanted(self, key: Key, size: int, turn: int) -> bool:
        have = self._times[key].get(size, [])
        if not have and size in self._sizes[:2]:
            return True
        share_s = self._budget_s / (len(self._keys) * len(self._sizes))
        if len(have) >= self._samples or (len(have) > turn and sum(have) >= share_s):
            return False
        return self.spent_s + (self._curve(key).seconds(size) if self._times[key] else 0.0) < self._budget_s

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


def nearest(fresh: Curves, saved: Sequence[Curves], factor: float) -> Curves | None:
    """Return which of `saved` describes best what was measured just now; None where none does within `factor`."""
    found = min(saved, key=lambda curves: times_apart(fresh, curves), default=None)
    return found if found is not None and times_apart(fresh, found) <= factor else None


def times_apart(fresh: Curves, saved: Curves) -> float:
    """Return the largest factor between the points of `fresh` and what `saved` says of them."""
    ratios = [
        seconds / max(saved.seconds(*key, size), 1e-9)
        for key, curve in fresh.by_key.items()
        for size, seconds in zip(curve.sizes, curve.times, strict=True)
    ]
    return max(max(ratio, 1 / ratio) for ratio in ratios)
