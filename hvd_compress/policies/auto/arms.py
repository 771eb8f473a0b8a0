"""Arms: by which compressor, and which paths, all buckets could travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import MESSAGE_BYTES
from hvd_compress.engines.base import Capabilities
from hvd_compress.policies.auto.quality import Candidate
from hvd_compress.policies.fixed import any_algorithm, decide
from hvd_compress.policies.prices import Open, Prices
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.schemes import Scheme


@dataclass(frozen=True)
class Arm:
    """How all buckets travel with one compressor.

    Attributes:
        candidate: the compressor, what it is called, and the steps that it needs.
        decisions: by bucket.
        predicted: what all their collectives take, in seconds by measured curves; in bytes where nothing was measured.
    """

    candidate: Candidate
    decisions: tuple[Decision, ...]
    predicted: float

    @property
    def way(self) -> str:
        """In words: what most of its bytes travel by."""
        return f"{self.candidate.name} by {', '.join(dict.fromkeys(str(each.path) for each in self.decisions))}"


def ways_of(
    candidates: Sequence[Candidate], layouts: Sequence[Layout], world_size: int, can: Capabilities
) -> Iterator[Open]:
    """Yield what is to be measured: of each candidate the ways that some network makes the fastest, or its only one."""
    for layout in layouts:
        for candidate in candidates:
            found = _built(candidate, layout, can)
            yield schemes.undominated(found, layout, world_size) or found[:1], layout


def make_arms(
    request: Request,
    candidates: Sequence[Candidate],
    layouts: Sequence[Layout],
    world_size: int,
    can: Capabilities,
    prices: Prices | None,
) -> list[Arm]:
    """Return an arm for each candidate that can travel, in their order; the first one is without compression.

    A bucket that would take no less time by its compressor than without travels without, as a small one does on a
    network with a long latency. An arm of which all buckets do is none.
    """
    arms: list[Arm] = []
    for candidate in candidates:
        if not all(_built(candidate, layout, can) for layout in layouts):
            continue
        asked = replace(request, compressor=candidate.compressor, policy=None)
        ways = []
        for number, layout in enumerate(layouts):
            own = decide(asked, layout, world_size, can, prices)
            way = _cost(own, layout, world_size, prices), own
            if arms:
                dense = arms[0].decisions[number]
                way = min((_cost(dense, layout, world_size, prices), dense), way, key=lambda each: each[0])
            ways.append(way)
        decisions = tuple(decision for _, decision in ways)
        if not arms or decisions != arms[0].decisions:
            arms.append(Arm(candidate, decisions, sum(cost for cost, _ in ways)))
    return arms


def _built(candidate: Candidate, layout: Layout, can: Capabilities) -> list[Scheme]:
    return [schemes.build(candidate.compressor, path) for path in any_algorithm(candidate.compressor, layout, can)]


def _cost(decision: Decision, layout: Layout, world_size: int, prices: Prices | None) -> float:
    scheme = decision.build()
    taken = {} if prices is None else prices.by_path([scheme], layout)
    return (
        taken[scheme.path] if scheme.path in taken else schemes.chain_bytes(scheme, layout, world_size, MESSAGE_BYTES)
    )
