"""The page of results is written by several scripts: each renews what stands between its own marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "results" / "attention.md"


def renew(page: Path, name: str, text: str) -> None:
    """Put a text between the marks of `name`, which come to the end of the page where it has none. All else stays."""
    begin, end = f"<!-- {name}: written by {name}_page.py -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = (page.read_text() if page.exists() else "").partition(begin)
    after = rest.partition(end)[2] if found else ""
    page.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
