"""A training job without a model: what is measured is the exchange alone."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from hvd_compress import schemes
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.front.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.policies import FixedPolicy
from hvd_compress.policies.auto.arms import open_paths
from hvd_compress.policies.auto.policy import AutoPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings

T = TypeVar("T")

NOT_MEASURED = 2.0
"""What is predicted to take this many times as long as the best one measured so far is not measured."""
NEAR, LONG_S = (1.3, 1.3, 1.2, 1.15, 1.1, 1.1), 0.1
"""By pass: what took this many times as long as the best until then is not measured again. In the first pass a step
that takes longer than LONG_S as well is not repeated."""
BLOCK_S, MOST = 0.4, 12
"""Short steps are noisy: in each pass they are repeated for so long, but in so many blocks at most."""
ENOUGH_S = 6.0
"""A machine may be slower for a while, which long steps hardly feel: what was measured for so long needs no other
pass."""


class Job:
    """Exchanges one gradient, step by step, as one bucket whose path is chosen by real steps."""

    def __init__(self, engine: Engine, gradient: torch.Tensor, compressor: TopK) -> None:
        self._engine, self._compressor = engine, compressor
        self._gradient, self._parameter = gradient, torch.nn.Parameter(torch.zeros_like(gradient))
        settings = Settings(
            4 * gradient.numel(), 600.0, adapt=True, calibration_s=float(os.environ.get("CALIBRATION_S", "3"))
        )
        parameters = {"weight": self._parameter}
        self.reducer = Reducer(parameters, Request(compressor), lambda: engine, ReduceOptions(), settings)

    @property
    def policy(self) -> AutoPolicy:
        policy = self.reducer.session.policy
        assert isinstance(policy, AutoPolicy)
        return policy

    @property
    def decision(self) -> Decision:
        """How the bucket travels in the next step."""
        (decision,) = self.reducer.session.decisions.values()
        return decision

    def step(self) -> float:
        """Return its seconds here."""
        start = time.perf_counter()
        self._parameter.grad = self._gradient.clone()
        self.reducer.ready("weight")
        self.reducer.finish()
        return time.perf_counter() - start

    def settle(self, patience: int) -> int:
        """Take steps until a path was chosen; return how many."""
        for step in range(patience):
            if self.policy.settled:
                return step
            self.step()
        return patience

    def predicted(self) -> dict[Path, float]:
        """Return by path what its collectives take by the curves."""
        layout, prices = self.reducer.session.layouts[0], self.policy._prices
        assert prices is not None
        sparse = open_paths(Request(self._compressor), layout, self._engine.capabilities)
        dense = [path for path in schemes.variants(Cast(), layout, self._engine.capabilities) if path.scheme == "dense"]
        built = [schemes.build(Cast() if path in dense else self._compressor, path) for path in (*dense, *sparse)]
        return prices.by_path(built, layout)

    def use(self, way: Path) -> None:
        """Send the one bucket so from now on. The steering must be out of the way."""
        (bucket,) = self.reducer.session._exchanges
        compressor = Cast() if way.scheme == "dense" else self._compressor
        bucket.decide(replace(bucket.decision, compressor=compressor, path=way, reason="measured"))

    def compare(self) -> dict[str, float]:
        """Return the seconds of a step by every candidate that may be the best, as rank 0 sees them. VAR goes as STAR.

        Steps are measured in blocks of as many as there are ranks, as AR-Topk has another root in each step. Of a pass
        the median block counts, of all passes the median. The shortest of many noisy figures flatters itself: so what
        is near it, and the chosen one, meet again and again, in turns.
        """
        known, chosen = self.predicted(), self.decision.path
        with self._unsteered():
            return self._passes(known, chosen)

    @contextmanager
    def _unsteered(self) -> Iterator[None]:
        session = self.reducer.session
        adaptive, session.policy = session.policy, FixedPolicy(Request(self._compressor))
        yield
        session.policy = adaptive
        adaptive.resume()
        session.follow(session.step)

    def _passes(self, known: Mapping[Path, float], chosen: Path) -> dict[str, float]:
        """Compare; `known` are predictions."""
        order = sorted(known, key=lambda way: known[way])
        measured: dict[Path, list[float]] = {}  # by pass
        spent_s: dict[Path, float] = dict.fromkeys(order, 0.0)
        for turn, near in enumerate(NEAR):
            for way in reversed(order) if turn % 2 else order:
                best = min(map(statistics.median, measured.values()), default=math.inf)
                before = statistics.median(measured[way]) if way in measured else math.inf
                if turn == 0 and way != chosen and known[way] > NOT_MEASURED * best + 0.001:
                    continue
                if turn > 0 and (spent_s[way] > ENOUGH_S or (way != chosen and before > near * best)):
                    continue
                self.use(way)
                taken = self.agreed(self.step())
                if way == chosen or taken <= max(LONG_S, near * best):
                    blocks = self._blocks(taken)
                    spent_s[way] += sum(blocks) * self._engine.world_size
                    taken = statistics.median(blocks)
                measured.setdefault(way, []).append(taken)
        return {str(way): statistics.median(passes) for way, passes in measured.items()}

    def _blocks(self, step_s: float) -> list[float]:
        """Return the mean seconds of a step in each of some blocks."""
        size, found = self._engine.world_size, []
        for _ in range(min(MOST, math.ceil(BLOCK_S / (size * step_s)))):
            start = time.perf_counter()
            for _ in range(size):
                self.step()
            found.append(self.agreed((time.perf_counter() - start) / size))
        return found

    def between_steps(self, call: Callable[[Engine], T]) -> T:
        """Run a collective, behind whatever the controller has under way."""
        return self.reducer.session._pipeline.begin(call, "of the benchmark")()

    def close(self) -> None:
        self.reducer.session._pipeline.stop()

    def agreed(self, seconds: float) -> float:
        """What is done next depends on it, so that of rank 0 counts on all ranks. Between two steps."""
        return self.between_steps(partial(_from_first_rank, seconds))


def _from_first_rank(seconds: float, engine: Engine) -> float:
    taken = torch.tensor([seconds], dtype=torch.float64)
    engine.broadcast(taken, 0)
    engine.take_calls()
    return float(taken)
