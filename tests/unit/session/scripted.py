"""Exchanges whose phases a test gives, and time-outs that are over when it says so: no time passes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from hvd_compress.collectives.base import Exchange
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.session import waiting
from hvd_compress.session.pipeline import Pipeline

PATIENCE_S, TIMEOUT_S = 120.0, 0.3
"""How long a test waits for what must happen: it passes long before, or fails. And the time-out that must be over."""


class Scripted(Exchange):
    """An exchange whose phases are given, and noted."""

    def __init__(self, name: str, log: list[str], **phases: Callable[[], object]) -> None:
        self.name, self.log, self.phases = name, log, phases

    def _run(self, phase: str) -> None:
        self.log.append(f"{phase} {self.name}")
        self.phases.get(phase, lambda: None)()

    def encode(self) -> None:
        self._run("encode")

    def communicate(self, engine: Engine) -> None:
        self._run("communicate")

    def decode(self) -> torch.Tensor:
        self._run("decode")
        return torch.tensor(self.phases.get("finite", lambda: True)())


def connected(timeout_s: float, arrivals: Arrivals | None = None) -> Pipeline:
    pipeline = Pipeline(timeout_s, arrivals)
    pipeline.connect(lambda: InProcessWorld(1).engine(0), lambda engine: None, PATIENCE_S)
    return pipeline


def passes(monkeypatch: pytest.MonkeyPatch, begun: threading.Event, seconds: float = math.inf) -> None:
    """Let these seconds pass for who waits next, as soon as what he waits for has begun."""
    asked = []

    def monotonic() -> float:
        asked.append(True)
        if len(asked) == 1:  # for the deadline
            return 0.0
        assert begun.wait(PATIENCE_S)
        return seconds

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=monotonic))


class Hanging:
    """What does not return until the test is over, and says when it has begun."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)


def raises(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call
