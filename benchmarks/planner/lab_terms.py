"""What of a traced run took longer than predicted, with the timelines of all ranks beside each other."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from click import ClickException
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.timeline.reading import TracedStep, read


def compared(plan: Path, timeline: Path, profile: Path) -> str:
    """Return what `hvd-compress plan compare` prints of one rank's timeline."""
    words = ["plan", "compare", str(plan), str(timeline), "--profile", str(profile)]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    if result.exit_code != 0:
        raise ClickException(result.output)
    return "\n".join(line.rstrip() for line in result.output.splitlines() if line.strip())


def waited_ms(timelines: Sequence[Path]) -> tuple[float, float]:
    """Return milliseconds of all collectives of a step, the median over steps: of the first rank, and without waiting.

    Who comes last to a collective waits for nobody: what it takes without waiting is the least of all ranks.
    """
    ranks = [{step.number: step for step in read(file)} for file in timelines]
    numbers = sorted(set.intersection(*(set(steps) for steps in ranks)) - {0})
    first = [sum(_calls(ranks[0][number]).values()) for number in numbers]
    alone = [_least([steps[number] for steps in ranks]) for number in numbers]
    return statistics.median(first) / 1e3, statistics.median(alone) / 1e3


def _least(steps: Sequence[TracedStep]) -> float:
    calls = [_calls(step) for step in steps]
    return sum(min(one[key] for one in calls) for key in calls[0])


def _calls(step: TracedStep) -> dict[tuple[str, int], float]:
    """Return the microseconds of each collective, by bucket and place in it."""
    found: dict[str, list[float]] = defaultdict(list)
    for span in sorted((s for s in step.spans if s.bucket and s.call), key=lambda s: s.start_us):
        found[span.bucket].append(span.end_us - span.start_us)
    return {(bucket, place): us for bucket, all_us in found.items() for place, us in enumerate(all_us)}
