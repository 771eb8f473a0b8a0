"""Schemes in which all ranks take part alike, and the one of them that sends the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress import guests
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.formulas import VERBS, Formulas, Terms
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Capabilities
from hvd_compress.schemes.allgather import AllGather
from hvd_compress.schemes.allreduce import AllReduce, Dense
from hvd_compress.schemes.alltoall import AllToAll
from hvd_compress.schemes.artopk import ARTopk
from hvd_compress.schemes.base import Scheme
from hvd_compress.schemes.requantize import Requantize

FLAT: tuple[type[Scheme], ...] = (Dense, AllToAll, AllReduce, AllGather, Requantize, ARTopk)
"""In the order in which paths are tried, and equals are preferred."""


def flat_for(compressor: Compressor) -> tuple[type[Scheme], ...]:
    """Return them, and those that a guest's compressor has for itself."""
    return (*FLAT, *map(guests.scheme, compressor.own_schemes))


def flat_scheme(compressor: Compressor, layout: Layout, world_size: int, can: Capabilities) -> Scheme | None:
    """Return what carries a compressor over so many ranks with the fewest bytes, no algorithm forced; None if nothing.

    The same on all ranks: it depends on the arguments alone.
    """
    found = [
        scheme(compressor, path)  # type: ignore[call-arg]
        for scheme in flat_for(compressor)
        if not scheme.by_name
        for path in scheme.variants(compressor, layout, can)
        if path == Path(path.scheme)
    ]
    return cheapest(found, layout, world_size) if found else None


def cheapest(found: Sequence[Scheme], layout: Layout, world_size: int) -> Scheme:
    """Return the scheme with the smallest bandwidth term, the first among equals.

    A message counts as the `message_bytes` of its compressor.
    """
    return min(found, key=lambda scheme: chain_bytes(scheme, layout, world_size, scheme.compressor.message_bytes))


def chain_bytes(scheme: Scheme, layout: Layout, world_size: int, message_bytes: int) -> float:
    """Return the bandwidth term of a scheme, in bytes, a message counting as `message_bytes`."""
    bandwidth = Formulas(float(message_bytes), 1.0, world_size)
    stages = scheme.stages(layout, world_size)
    return sum(bandwidth.seconds(stage.verb, stage.algorithm, stage.size) for stage in stages)


def undominated(found: Sequence[Scheme], layout: Layout, world_size: int) -> list[Scheme]:
    """Return those that some network makes the fastest, by formulas; none where it is the same one on all of them.

    No other has as few messages and as few bytes, of equals the first.
    """
    rows = [_terms(scheme, layout, world_size) for scheme in found]

    def beaten(place: int) -> bool:
        own = rows[place]
        return any(
            other.steps <= own.steps and other.bytes <= own.bytes and (other != own or number < place)
            for number, other in enumerate(rows)
            if number != place
        )

    left = [scheme for place, scheme in enumerate(found) if not beaten(place)]
    return left if len(left) > 1 else []


def _terms(scheme: Scheme, layout: Layout, world_size: int) -> Terms:
    stages = scheme.stages(layout, world_size)
    return sum((VERBS[s.verb](s.size, world_size, s.algorithm) for s in stages), Terms(0, 0))
