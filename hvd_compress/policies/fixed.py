"""A request that leaves nothing to be chosen while training: one decision a bucket, before it travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective
from hvd_compress.collectives.requantize import GATHER
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.open_paths import left_open, unforced
from hvd_compress.policies.prices import Prices, measure
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request, compression_device

MARGIN = 0.1
"""What measured curves must save, as a share, for another path than that of the arithmetic: they are noisy, and two
jobs on one network are to decide alike."""


class FixedPolicy(DecisionPolicy):
    """What the request says; of what it leaves open, the path that takes the fewest seconds by a short measurement.

    Where nothing is measured, the path with the fewest bytes, a message counting as some.
    """

    cuttable = True

    def __init__(self, request: Request) -> None:
        self._request = request
        self._prices: Prices | None = None

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        if self._request.algorithm != "auto":
            assert self._request.verb is not None
            engine.require(self._request.verb, self._request.algorithm)
        self._decided(parameters)
        if self.measuring_s is not None:
            asked = ((self._request, layout) for layout in parameters)
            self._prices = measure(engine, left_open(asked, self.capabilities), self.measuring_s)

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        return self._decided(buckets)

    def _decided(self, buckets: Sequence[Layout]) -> list[Decision]:
        return [decide(self._request, layout, self.world_size, self.capabilities, self._prices) for layout in buckets]


def decide(
    request: Request, layout: Layout, world_size: int, can: Capabilities, prices: Prices | None = None
) -> Decision:
    """Turn a request into the decision for a bucket. Pure: the same arguments give the same decision.

    Args:
        can: what the engine can do.
        prices: of what may be open; without them it goes by arithmetic.

    Raises:
        ConfigError: the request has no meaning for such a bucket.
    """
    decision = _decide(request, layout, world_size, can, prices)
    return replace(decision, device=compression_device(request, layout.device_type))


def _decide(request: Request, layout: Layout, world_size: int, can: Capabilities, prices: Prices | None) -> Decision:
    compressor, algorithm = request.compressor, request.algorithm
    if layout.dtype == torch.float64:
        algorithm = algorithm if request.verb == "allreduce" else "auto"
        return _uncompressed(algorithm, "float64 gradients are not compressed")
    if request.collective != "auto":
        selections = collectives.meanings(request.collective)
        if not any(path.collective in selections for path in collectives.runnable(compressor, layout, can)):
            if request.collective == GATHER and not compressor.is_fixed(layout):
                raise ConfigError(
                    f"collective={GATHER!r} needs payloads of one length, and those of {compressor} differ: leave it "
                    "at 'auto'"
                )
            raise UnsupportedError(_cannot(request.collective, can))
        if request.collective == "allgather" and algorithm != "auto" and not compressor.is_fixed(layout):
            raise ConfigError(
                f"algorithm={algorithm!r} names an all-gather of equal lengths, and those of {compressor} differ: "
                "leave it at 'auto'"
            )
        reason = "asked for" if len(selections) == 1 else "asked for; ranks take turns at first"
        return Decision(compressor, Path(selections[0], algorithm), reason=reason)
    found = unforced(compressor, layout, can)
    if algorithm != "auto":
        summed = [each.path.collective for each in found if each.verb == "allreduce"]
        if not summed:
            raise ConfigError(
                f"algorithm={algorithm!r} names an allreduce, and {_sent_dtype(compressor, layout)} travels by "
                "all-to-all, which sums it in float32: leave it at 'auto'"
            )
        reason = "an algorithm was asked for" if compressor.compresses else "asked for"
        return Decision(compressor, Path(summed[0], algorithm), reason=reason)
    if not found:
        raise ConfigError(f"no collective carries {compressor} over this engine, which has {', '.join(can.verbs)}")
    if not compressor.compresses:
        sums = _sent_dtype(compressor, layout) in can.sum_dtypes
        reason = "asked for" if sums else f"the engine cannot sum {_sent_dtype(compressor, layout)}"
        return Decision(compressor, found[0].path, reason=reason)
    if len(found) == 1:
        return Decision(compressor, found[0].path, reason="no other collective carries its payloads")
    path, reason = _of_several(compressor, found, layout, world_size, prices)
    return Decision(compressor, path, reason=reason)


def _of_several(
    compressor: Compressor, found: Sequence[Collective], layout: Layout, world_size: int, prices: Prices | None
) -> tuple[Path, str]:
    """Return the path of those that are open, and why."""
    counted = collectives.cheapest(found, layout, world_size).path
    if world_size == 1:
        return counted, "one rank exchanges nothing"
    taken = {} if prices is None else prices.by_path(found, layout)
    if prices is None or counted not in taken or len(taken) == 1:
        counting = f", a message counting as {compressor.message_bytes >> 10} KiB" if compressor.message_bytes else ""
        return counted, f"fewest bytes with {world_size} ranks{counting}"
    fastest = min(taken, key=taken.__getitem__)
    chosen = fastest if taken[fastest] < (1 - MARGIN) * taken[counted] else counted
    following = min((path for path in taken if path != chosen), key=taken.__getitem__)
    took, following_took = (f"{1e3 * taken[path]:.2f}" for path in (chosen, following))
    relation = "next" if chosen == fastest else f"within {MARGIN:.0%} of"
    return chosen, f"{took} ms by curves of {prices.source}, {relation} {following} with {following_took}"


def _uncompressed(algorithm: str, reason: str) -> Decision:
    return Decision(Cast(), Path("dense", algorithm), reason=reason)


def _sent_dtype(compressor: Compressor, layout: Layout) -> torch.dtype | None:
    return compressor.wire(layout)[0].sum_dtype


def _cannot(collective: str, can: Capabilities) -> str:
    """Say why a collective that was asked for cannot be run, and what to do."""
    obstacle = collectives.obstacle(collective, can)
    if obstacle:
        return f"collective {collective!r} cannot be run: {obstacle}"
    return (
        f"collective {collective!r} cannot be run over this engine, which has {', '.join(can.verbs)}: leave it at "
        "'auto', or say .by(engine='mpi') of the compression, in a job that mpirun has launched"
    )
