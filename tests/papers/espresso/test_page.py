"""What docs/planner.md lists; tests/unit/docs runs its example."""

from __future__ import annotations

import re
from pathlib import Path

from hvd_compress.papers.espresso.baselines import POLICIES

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"


def test_the_page_has_all_policies() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text().partition("## Policies")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([^`]*)`", row)} == set(POLICIES)
