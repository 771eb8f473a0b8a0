"""Files that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
NAMED = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)(?:::?\w+)?`")
"""Files in folders; NAME.py stands for any."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_are_there(page: Path) -> None:
    named = NAMED.findall(page.read_text())
    assert [name for name in named if not any((ROOT / base / name).is_file() for base in ("", "hvd_compress"))] == []


def test_some_are_named() -> None:
    assert sum(len(NAMED.findall(page.read_text())) for page in PAGES) > 50
