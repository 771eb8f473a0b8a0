"""What is said of a measured choice, and the tables of the pages in benchmarks/results."""

from __future__ import annotations


def best(cell: dict) -> str:
    """Return the fastest of what was measured: `cell["measured"]` holds seconds by candidate."""
    return min(cell["measured"], key=cell["measured"].__getitem__)


def regret(cell: dict, chosen: str) -> float:
    """How much longer a choice takes than the best measured one; NaN where it was not measured."""
    if chosen not in cell["measured"]:
        return float("nan")
    return cell["measured"][chosen] / cell["measured"][best(cell)] - 1


def outdone(cell: dict, chosen: str) -> float:
    """How much longer a choice takes than the best measured one, by steps that were taken after that was found.

    The best one of many was lucky, too; so both are measured anew, in turns (`cell["duel"]`).
    """
    return cell["duel"][chosen] / cell["duel"][best(cell)] - 1 if chosen != best(cell) else 0.0


def head(*titles: str) -> tuple[str, str]:
    """Return the first two lines of a table in Markdown."""
    return row(*titles), row(*("---" for _ in titles))


def row(*texts: object) -> str:
    """Return a line of a table in Markdown."""
    return "| " + " | ".join(map(str, texts)) + " |"
