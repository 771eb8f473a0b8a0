"""When an exchange was in which phase."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.engines.base import Call

Span = tuple[float, float]
"""Start and end, in seconds of time.perf_counter()."""


def length(span: Span) -> float:
    """Return its seconds."""
    return span[1] - span[0]


@dataclass(frozen=True)
class PhaseSpans:
    """When a bucket was in which phase, and the collectives of its exchange, in their order."""

    encode: Span
    communicate: Span
    decode: Span
    calls: tuple[Call, ...]

    @property
    def compress_s(self) -> float:
        return length(self.encode)

    @property
    def communicate_s(self) -> float:
        return length(self.communicate)

    @property
    def decompress_s(self) -> float:
        return length(self.decode)
