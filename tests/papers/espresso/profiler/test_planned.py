"""Plans from profiles that were recorded."""

from __future__ import annotations

from pathlib import Path

from hvd_compress.papers.espresso.planning import plan
from hvd_compress.papers.espresso.prices import Prices
from hvd_compress.profiler.profiles import (
    COMPRESSOR,
    MODEL,
    SYSTEM,
    CompressorProfile,
    ModelProfile,
    SystemProfile,
    read,
)
from tests.harness import SHAPES
from tests.papers.espresso.profiler.conftest import folder as folder
from tests.papers.espresso.profiler.test_system import VERBS, measured


def test_a_plan_is_made_from_them(folder: Path) -> None:
    model, system = read(folder / MODEL, ModelProfile), read(folder / SYSTEM, SystemProfile)
    planned = plan(model, system, read(folder / COMPRESSOR, CompressorProfile), budget_s=0.5)
    assert sorted(number for numbers in planned.fused.cuts for number in numbers) == list(range(len(SHAPES)))
    assert planned.end_ns >= 1e3 * sum(tensor.backward_us for tensor in model.tensors)


def test_the_planner_takes_the_curves() -> None:
    """Prices of a routine are those of its curve, not of alpha and beta."""
    found = measured((0, 0, 1, 1))[0]
    prices = Prices.__new__(Prices)
    prices._system = found
    for name, curves in found.curves().items():
        for verb in VERBS:
            assert prices._link_s(name, verb, 4096, 2) == curves.seconds(verb, "auto", 4096)
