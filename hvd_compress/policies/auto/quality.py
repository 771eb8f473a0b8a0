"""Which compressors may be chosen, and the steps that training needs with each, over those without compression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from hvd_compress.checks import check_choice, check_number
from hvd_compress.compressors import BlockQuantizer, Cast, Compressor
from hvd_compress.errors import ConfigError
from hvd_compress.policies.plan_settings import compressor_of, settings_called

Quality = Literal["dense", "near", "any"]
QUALITIES: tuple[str, ...] = get_args(Quality)
Kind = Literal["sgd", "adam"]


@dataclass(frozen=True)
class Candidate:
    """What may be chosen.

    Attributes:
        name: as its function of `Compression` is called.
        factor: the steps that training needs, over those without compression.
        if_coded: whether it is chosen only where a coder makes it shorter, and curves say that it clearly pays.
    """

    name: str
    compressor: Compressor
    factor: float = 1.0
    if_coded: bool = False


DENSE = Candidate("dense", Cast())
COMPRESSED = ("bf16", "int8", "int4", "natural", "int2", "powersgd", "topk")
"""Functions of `Compression`. What sends a momentum, or needs an optimizer of its own, is never chosen."""
NEAR = ("bf16", "int8", "int4")
"""Within 0.02 nats of dense after 240 steps on both tasks of benchmarks/results/time-to-accuracy.md: bf16 -0.000 and
-0.001, int8 -0.001 and -0.001, int4 -0.002 and +0.000 (language and images). So is natural(), +0.006 and -0.001, but
its step takes longer than that of int8 on every network there."""
CODED = Candidate("int3", BlockQuantizer(3, 256), 1.04, if_coded=True)
"""Within 0.02 nats, too: +0.017 and -0.001; the factor is the transformer's, 1.00 with images. Only coded, whose step
at 20 Mbit/s is 0.69 of that of int4: as it is, more steps and fewer bytes come to much the same."""
FACTORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "sgd": MappingProxyType({"natural": 1.0, "int2": 1.59, "powersgd": 1.04, "topk": 1.42}),
        "adam": MappingProxyType({"natural": 1.01}),
    }
)
"""Steps to dense's loss after 240 steps, over 240, by kind of optimizer: of the convnet with SGD, of the transformer
with AdamW (benchmarks/results/time-to-accuracy.json, tests/benchmarks/test_results.py); of natural() with AdamW to its
loss after 120, over 120, as it was stopped at 240. What had not come to that loss when it was stopped is no candidate:
with AdamW int2, PowerSGD of rank 4 and top-k of 1 % had not after 240, 400 and 300 steps."""


def candidates(
    quality: Quality, kind: Kind | None = None, factors: Mapping[str, float] | None = None
) -> tuple[Candidate, ...]:
    """Return what may be chosen; the first one is without compression.

    Args:
        kind: of optimizer; unknown counts as Adam-like, with which fewer compressors come to dense's loss.
        factors: instead of the table, which "any" alone heeds.
    """
    if quality == DENSE.name:
        return (DENSE,)
    table = {**dict.fromkeys(NEAR, 1.0), CODED.name: CODED.factor}
    if quality == "any":
        table = {**table, **FACTORS[kind or "adam"]} if factors is None else dict(factors)
    return (DENSE, *(_candidate(name, factor) for name, factor in table.items()))


def _candidate(name: str, factor: float) -> Candidate:
    if name == CODED.name:
        return replace(CODED, factor=factor)
    return Candidate(name, compressor_of(settings_called(name)), factor)


def checked(factors: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Return factors that a user gives, in the order in which all ranks have them. Raises ConfigError."""
    if not isinstance(factors, Mapping):
        raise ConfigError(f"factors = {factors!r} must say by name how many times the steps of dense are needed")
    for name, factor in factors.items():
        check_choice("compression", name, (*COMPRESSED, CODED.name), " in factors")
        check_number(f"factors: {name}", factor, 0, above=True, hint="how many times the steps of dense are needed")
    return tuple(sorted((name, float(factor)) for name, factor in factors.items()))
