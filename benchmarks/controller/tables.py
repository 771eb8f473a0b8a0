"""The tables of the pages in benchmarks/results."""

from __future__ import annotations


def head(*titles: str) -> tuple[str, str]:
    """Return the first two lines of a table in Markdown."""
    return row(*titles), row(*("---" for _ in titles))


def row(*texts: object) -> str:
    """Return a line of a table in Markdown."""
    return "| " + " | ".join(map(str, texts)) + " |"
