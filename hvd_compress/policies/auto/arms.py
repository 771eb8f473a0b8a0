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
        """In words: by which compressor and paths."""
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
    network with a long latency. Where all of them would, real steps have the last word: each travels by its compressor.
    """
    arms: list[Arm] = []
    for candidate in candidates:
        if not all(_built(candidate, layout, can) for layout in layouts):
            continue
        asked = replace(request, compressor=candidate.compressor, policy=None)
        decided = [decide(asked, layout, world_size, can, prices) for layout in layouts]
        own = [(_cost(d, layout, world_size, prices), d) for d, layout in zip(decided, layouts, strict=True)]
        dense = [
            (_cost(d, layout, world_size, prices), d)
            for d, layout in zip(arms[0].decisions if arms else decided, layouts, strict=True)
        ]
        cheaper = [min(pair, key=lambda each: each[0]) for pair in zip(dense, own, strict=True)]
        ways = own if cheaper == dense else cheaper
        arms.append(Arm(candidate, tuple(decision for _, decision in ways), sum(cost for cost, _ in ways)))
        if not layouts:
            break
    return arms


def _built(candidate: Candidate, layout: Layout, can: Capabilities) -> list[Scheme]:
    return [schemes.build(candidate.compressor, path) for path in any_algorithm(candidate.compressor, layout, can)]


def _cost(decision: Decision, layout: Layout, world_size: int, prices: Prices | None) -> float:
    scheme = decision.build()
    taken = {} if prices is None else prices.by_path([scheme], layout)
    return (
        taken[scheme.path] if scheme.path in taken else schemes.chain_bytes(scheme, layout, world_size, MESSAGE_BYTES)
    )
