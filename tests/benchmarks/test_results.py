"""What benchmarks/results holds: pages, their pictures, and two files of figures, by which pages are made."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.scripts import load

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LARGEST_BYTES = 80_000


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("controller/grid.py", monkeypatch)


def test_two_files_of_figures_are_kept_and_they_are_small() -> None:
    figures = sorted(path for path in RESULTS.iterdir() if path.suffix not in (".md", ".png"))
    assert [path.name for path in figures] == ["controller-grid.json", "time-to-accuracy.json"]
    assert max(path.stat().st_size for path in figures) < LARGEST_BYTES


def test_the_page_of_the_grid_is_that_of_its_figures(grid: ModuleType) -> None:
    cells = grid.read_grid(RESULTS / "controller-grid.json")
    assert grid.page(cells) in (RESULTS / "controller-grid.md").read_text()


def test_a_grid_is_read_as_it_was_saved(grid: ModuleType, tmp_path: Path) -> None:
    cells = grid.read_grid(RESULTS / "controller-grid.json")
    grid.save_grid(tmp_path / "new" / "grid.json", cells)
    assert grid.read_grid(tmp_path / "new" / "grid.json") == cells


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (RESULTS / target).exists(), target
