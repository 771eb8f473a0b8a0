"""What a rank sends by each collective: counted by the in-process engine, and by the cost model's formulas."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.compressors import BlockQuantizer, Cast, Compressor, EFSign, PowerSGD, TopK
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines import wire
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState

COMPRESSORS: dict[str, Compressor] = {
    "dense": Cast(),
    "int4": BlockQuantizer(4),
    "topk 1 %": TopK(0.01),
    "efsign": EFSign(),
    "powersgd": PowerSGD(2),
}
PER_HOST = 8
MOST_BYTES = 1 << 30
"""That all ranks may hold of what others send."""


@dataclass(frozen=True)
class Count:
    """One step of one bucket on `ranks` ranks: bytes and messages that a rank sends, on average and at most.

    `modelled` is the mean of the formulas, headers left out; None for collectives of groups.
    """

    ranks: int
    mean_bytes: float
    most_bytes: int
    mean_messages: float
    modelled: float | None
    seconds: float


def paths(compressor: Compressor, layout: Layout, most: int) -> list[Path]:
    """Return every collective that carries a compressor, with every algorithm where there is no compression."""
    can = InProcessWorld(most, hosts=hosts_of(most)).engine(0).capabilities
    found = collectives.runnable(compressor, layout, can)
    return [path for path in found if not compressor.compresses or path == Path(path.collective)]


def hosts_of(ranks: int) -> tuple[int, ...]:
    return tuple(rank // PER_HOST for rank in range(ranks))


def counts(compressor: Compressor, path: Path, layout: Layout, most: int, limit_s: float) -> Iterator[Count]:
    """Count on 2, 4, ... ranks, up to `most` or as far as memory and the time of the next step allow."""
    grouped = path.collective.startswith("hierarchical") or path.collective == "hitopk"
    ranks, last_s = 2 * PER_HOST if grouped else 2, 0.0
    while ranks <= most and 4 * last_s <= limit_s and _held(compressor, path, layout, ranks) <= MOST_BYTES:
        count = counted(compressor, path, layout, ranks, grouped)
        yield count
        ranks, last_s = 2 * ranks, count.seconds


def counted(compressor: Compressor, path: Path, layout: Layout, ranks: int, grouped: bool) -> Count:
    hosts = hosts_of(ranks) if grouped else tuple(range(ranks))

    def body(engine: InProcessEngine) -> tuple[int, int]:
        exchange = collectives.build(compressor, path).exchange(
            _work(compressor, layout, engine.rank, ranks, hosts), engine.rank, ranks
        )
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()
        return engine.sent_bytes, engine.sent_messages

    begin = time.perf_counter()
    found = run_ranks(ranks, body, timeout_s=600.0, hosts=hosts)
    sent, messages = zip(*found, strict=True)
    stages = collectives.stages(compressor, path, layout, ranks)
    modelled = None if grouped else sum(_modelled(stage, ranks) for stage in stages)
    return Count(ranks, sum(sent) / ranks, max(sent), sum(messages) / ranks, modelled, time.perf_counter() - begin)


def _work(compressor: Compressor, layout: Layout, rank: int, ranks: int, hosts: Sequence[int]) -> Work:
    gradient = torch.randn(layout.numel, generator=torch.Generator().manual_seed(rank))
    zeros = torch.zeros(layout.numel)
    residual = Residual(zeros, zeros.clone(), may_defer=True) if compressor.error_feedback else None
    state = BucketState(residual, dict(compressor.new_state(layout, torch.device("cpu"))))
    return Work(gradient, layout, 0, 0, 1 / ranks, state, rank, hosts=tuple(hosts))


def _modelled(stage: Stage, ranks: int) -> float:
    algorithm = (stage.algorithm,) if stage.verb in ("allreduce", "broadcast") else ()
    return float(getattr(wire, stage.verb)(math.ceil(stage.size), ranks, *algorithm))


def _held(compressor: Compressor, path: Path, layout: Layout, ranks: int) -> float:
    """Return bytes of gradients and of what is gathered, on all ranks together."""
    stages = collectives.stages(compressor, path, layout, ranks)
    gathered = sum(stage.size * (ranks if stage.verb == "allgather" else 2) for stage in stages)
    return ranks * (12 * layout.numel + gathered)
