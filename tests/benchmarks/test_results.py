"""What benchmarks/results holds: pages, their pictures, and two files of figures, by which pages are made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.time_to_accuracy.figures import Figures
from hvd_compress.policies.auto.quality import CODED, COMPRESSED, FACTORS, NEAR

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LARGEST_BYTES = 80_000


def test_two_files_of_figures_are_kept_and_they_are_small() -> None:
    figures = sorted(path for path in RESULTS.iterdir() if path.suffix not in (".md", ".png"))
    assert [path.name for path in figures] == ["controller-grid.json", "time-to-accuracy.json"]
    assert max(path.stat().st_size for path in figures) < LARGEST_BYTES


@pytest.mark.parametrize(("kind", "task"), [("sgd", "images"), ("adam", "language")])
def test_factors_of_auto_are_those_of_the_figures(kind: str, task: str) -> None:
    """And what has not come to dense's loss has none."""
    kept = Figures(json.loads((RESULTS / "time-to-accuracy.json").read_text()))
    for name in set(COMPRESSED) - set(NEAR):
        goal = 120 if (kind, name) == ("adam", "natural") else 240
        steps = kept.steps(task, name, goal)
        assert (name in FACTORS[kind]) == steps.reached, name
        if steps.reached:
            assert FACTORS[kind][name] == pytest.approx(max(1.0, steps.mean / goal), abs=0.006), name


def test_the_factor_of_what_is_coded_is_the_larger_one() -> None:
    kept = Figures(json.loads((RESULTS / "time-to-accuracy.json").read_text()))
    found = [kept.steps(task, "int3-coded", 240) for task in ("images", "language")]
    assert all(steps.reached for steps in found)
    assert CODED.factor == pytest.approx(max(steps.mean for steps in found) / 240, abs=0.006)


@pytest.mark.parametrize("task", ["images", "language"])
def test_what_is_near_was_near(task: str) -> None:
    """Within 0.02 nats of dense of the same seed after 240 steps."""
    kept = Figures(json.loads((RESULTS / "time-to-accuracy.json").read_text()))
    dense = kept.losses(task, "dense")
    for name in (*NEAR, "int3-coded"):
        apart = [dict(losses)[240] - dict(dense[seed])[240] for seed, losses in kept.losses(task, name).items()]
        assert fmean(apart) <= 0.02, name


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text())
    for target in re.findall(r"\]\(([^)#]+)", prose):
        assert (RESULTS / target).exists(), target
