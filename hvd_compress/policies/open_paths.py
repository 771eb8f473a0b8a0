"""By which collectives a request leaves it open to send a bucket. The same order on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Capabilities
from hvd_compress.policies.prices import Open
from hvd_compress.request.request import Request


def unforced(compressor: Compressor, layout: Layout, can: Capabilities) -> list[Collective]:
    """Return what carries a bucket, the algorithms left to the engine."""
    paths = collectives.variants(compressor, layout, can)
    return [collectives.build(compressor, path) for path in paths if path == Path(path.collective)]


def open_collectives(request: Request, layout: Layout, can: Capabilities) -> list[Collective]:
    """Return what can send a bucket as a request asks for it: of a sparsifier or a named collective by each algorithm.

    A named algorithm of an allreduce leaves that of an all-gather open. Whose indices AR-Topk uses is no matter of time
    (`policies/roots.py`): where that is open, ranks take turns, and the broadcast is the engine's own.
    """
    compressor, verb, named = request.compressor, request.verb, request.algorithm
    if request.collective == "auto" and not compressor.has_ratio:
        found = unforced(compressor, layout, can)
    else:
        paths = collectives.variants(compressor, layout, can)
        if request.collective == "auto":
            paths = tuple(p for p in paths if p.collective not in collectives.for_gain())
        else:
            first, *others = collectives.meanings(request.collective)
            paths = tuple(p for p in paths if p.collective == first and (not others or p.broadcast == "auto"))
        found = [collectives.build(compressor, path) for path in paths]
    return [each for each in found if named in ("auto", each.path.algorithm) or each.verb != verb]


def left_open(asked: Iterable[tuple[Request, Layout]], can: Capabilities) -> Iterator[Open]:
    """Yield what requests leave to arithmetic or prices, of the parameters for which they ask."""
    for request, layout in asked:
        names_none = (request.collective, request.algorithm) == ("auto", "auto") and request.compressor.compresses
        if names_none and not layout.sparse and layout.dtype != torch.float64:
            yield [unforced(request.compressor, layout, can)], layout
