"""A request that leaves nothing to be chosen while training: one decision a bucket, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.decision import Decision, Request, compression_device
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.policies.base import DecisionPolicy, Launch


class FixedPolicy(DecisionPolicy):
    """What the request says; of what it leaves open, the path with the fewest bytes, a message counting as some."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        if self._request.algorithm != "auto":
            assert self._request.verb is not None
            engine.require(self._request.verb, self._request.algorithm)
        self._decided(parameters)

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        return self._decided(buckets)

    def _decided(self, buckets: Sequence[Layout]) -> list[Decision]:
        return [decide(self._request, layout, self.world_size, self.capabilities) for layout in buckets]


def decide(request: Request, layout: Layout, world_size: int, can: Capabilities) -> Decision:
    """Turn a request into the decision for a bucket. Pure: the same arguments give the same decision.

    Args:
        can: what the engine can do.

    Raises:
        ConfigError: the request has no meaning for such a bucket.
    """
    return replace(_decide(request, layout, world_size, can), device=compression_device(request, layout.device_type))


def _decide(request: Request, layout: Layout, world_size: int, can: Capabilities) -> Decision:
    compressor, algorithm = request.compressor, request.algorithm
    if layout.dtype == torch.float64:
        algorithm = algorithm if request.verb == "allreduce" else "auto"
        return _uncompressed(algorithm, "float64 gradients are not compressed")
    if request.ratio is not None and world_size == 1:
        return _uncompressed("auto", "no compression pays with one rank")
    if request.scheme != "auto":
        selections = schemes.meanings(request.scheme)
        if not any(path.scheme in selections for path in schemes.runnable(compressor, layout, can)):
            raise UnsupportedError(_cannot(request.scheme, can))
        reason = "asked for" if len(selections) == 1 else "asked for; ranks take turns at first"
        return Decision(compressor, Path(selections[0], algorithm), reason=reason)
    found = [path for path in schemes.variants(compressor, layout, can) if path == Path(path.scheme)]
    if algorithm != "auto":
        found = [Path(path.scheme, algorithm) for path in found if schemes.verb_of(path.scheme) == "allreduce"]
        if not found:
            raise ConfigError(
                f"algorithm={algorithm!r} names an allreduce, and {_sent_dtype(compressor, layout)} travels by "
                "all-to-all, which sums it in float32: leave it at 'auto'"
            )
        reason = "an algorithm was asked for" if compressor.compresses else "asked for"
        return Decision(compressor, found[0], reason=reason)
    if not found:
        raise ConfigError(f"no scheme carries {compressor} over this engine, which has {', '.join(can.verbs)}")
    if not compressor.compresses:
        summed = _sent_dtype(compressor, layout) in can.sum_dtypes
        reason = "asked for" if summed else f"the engine cannot sum {_sent_dtype(compressor, layout)}"
        return Decision(compressor, found[0], reason=reason)
    path = schemes.cheapest([schemes.build(compressor, path) for path in found], layout, world_size).path
    counting = f", a message counting as {compressor.message_bytes >> 10} KiB" if compressor.message_bytes else ""
    least = f"fewest bytes with {world_size} ranks{counting}" if world_size > 1 else "one rank exchanges nothing"
    reason = least if len(found) > 1 else "no other scheme carries its payloads"
    return Decision(compressor, path, reason=reason)


def _uncompressed(algorithm: str, reason: str) -> Decision:
    return Decision(Cast(), Path("dense", algorithm), reason=reason)


def _sent_dtype(compressor: Compressor, layout: Layout) -> torch.dtype | None:
    return compressor.wire(layout)[0].sum_dtype


def _cannot(scheme: str, can: Capabilities) -> str:
    """Say why a scheme that was asked for cannot be run, and what to do."""
    obstacle = schemes.obstacle(scheme, can)
    if obstacle:
        return f"scheme {scheme!r} cannot be run: {obstacle}"
    return (
        f"scheme {scheme!r} cannot be run over this engine, which has {', '.join(can.verbs)}: leave it at 'auto', or "
        "launch the job with mpirun, and pass engine='mpi' to the compression"
    )
