"""What was decided when and why: a stream of events, which is remembered, and written by those who watch it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("choice", "window", "metrics", "network", "ccr", "ratio", "rollout", "root")
KEPT = 20_000
"""Events that are remembered, some 10 MB: training may take millions of steps."""


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        step: after which it happened.
        kind: "choice" (how a bucket travels from then on), "window" (what its exchanges took), "metrics" (what a step
            was like, as Handle.metrics() says); "network" (another one
            was noticed, and measured), "ccr" (what a backward pass can hide was profiled), "root" (STAR or VAR was
            chosen); of Compression.flexible() "ratio" (chosen, perhaps the one before) or "rollout" (steps with a ratio
            that were taken back).
        bucket: which one, or -1 for all.
        candidate: what was tried, chosen or in use.
        ratio: k / numel as it is sent: 1 without compression.
        measured_s: of one exchange of this bucket, the median of a window as rank 0 saw it, the wait for other ranks
            included; of a rollout the mean of its steps, as agreed among ranks.
        predicted_s: of one exchange, by curves and measured kernels.
        gain: share of ||corrected||^2 that is sent, mean over ranks; NaN where it was not looked at. Of a rollout the
            mean of its steps; of a ratio as expected.
        reason: in words.
        compressor: of a choice.
        wire_ratio: bytes that were sent in a window, over those without compression in each of its steps, of a ring
            allreduce, or of a reduce-scatter where ranks own shards; NaN with one rank.
        figures: of "metrics", by name.
    """

    step: int
    kind: str
    bucket: int = -1
    candidate: str = ""
    ratio: float = math.nan
    measured_s: float = math.nan
    predicted_s: float = math.nan
    gain: float = math.nan
    reason: str = ""
    compressor: str = ""
    wire_ratio: float = math.nan
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what can be written as JSON: NaN, and figures where there are none, are left out."""
        said = {k: v for k, v in asdict(self).items() if not (isinstance(v, float) and not math.isfinite(v))}
        return said if self.figures else {k: v for k, v in said.items() if k != "figures"}


Watcher = Callable[[Event], None]


class History:
    """The last KEPT events of a run, in order. Watchers are called with each, in the thread that trains."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._watchers = watchers

    def add(self, event: Event) -> None:
        assert event.kind in KINDS
        self.events.append(event)
        for watch in self._watchers:
            watch(event)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
