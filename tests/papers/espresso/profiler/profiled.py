"""Jobs that are profiled, whose ranks are threads of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_compress.compressors import TopK
from hvd_compress.engines.inprocess import InProcessEngine
from hvd_compress.papers.espresso.profiler.settings import ProfileSettings
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, flat_gradient, on_engine

STEPS, SKIP = 3, 2
REQUEST = Request(TopK(0.05))


def settings(folder: Path | None, **changed: Any) -> Settings:
    """Three buckets with SHAPES, and a profile where there is a folder for it."""
    profile = () if folder is None else (ProfileSettings(folder, STEPS, SKIP, **changed),)
    return Settings(fusion_threshold_bytes=600, timeout_s=60, calibration_s=0.02, recordings=profile)


def train(engine: InProcessEngine, given: Settings, request: Request = REQUEST, steps: int = STEPS + SKIP + 2):
    """Return the optimizer, and this rank's gradients of each step."""
    parameters, optimizer = on_engine(engine, request, settings=given)
    found = []
    for step in range(steps):
        backward(parameters, engine.rank, step)
        optimizer.step()
        found.append(flat_gradient(parameters))
        optimizer.zero_grad()
    return optimizer, found
