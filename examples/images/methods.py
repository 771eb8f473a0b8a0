"""The names on the command line, and the compression behind each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click


@dataclass(frozen=True)
class Method:
    """A way to exchange gradients: what it is called, how it is built, which options of the command line it takes.

    `build` takes the `Compression` of a front end, and options. `value_bytes` is what Horovod's own compressions send
    for a value; those of hvd_compress report their bytes.
    """

    label: str
    build: Callable[..., Any]
    options: tuple[str, ...] = ()
    value_bytes: int = 4


_TOPK_OPTIONS = ("ratio", "algorithm", "engine")


def _auto(compressions: Any, ratio: float | None = None, **options: Any) -> Any:
    """Leave everything to be chosen, or the path of top-k."""
    return compressions.auto(**options) if ratio is None else compressions.topk(ratio, scheme="auto", **options)


def _blocks(bits: int, compressions: Any, **options: Any) -> Any:
    return getattr(compressions, f"int{bits}")(**options)


METHODS = {
    "none": Method(
        "uncompressed", lambda c: c.none
    ),  # Horovod's own, as fp16 is; DDP's hook takes the place of its own
    "fp16": Method("fp16", lambda c: c.fp16, value_bytes=2),
    "bf16": Method("bf16", lambda c, **options: c.bf16(**options), ("engine",)),
    "dense": Method("dense", lambda c, **options: c.dense(**options), ("algorithm", "engine")),
    "auto": Method("chosen while training", _auto, ("ratio", "engine")),
    "topk": Method("top-k, all-gather", lambda c, **options: c.topk(scheme="allgather", **options), _TOPK_OPTIONS),
    "star": Method("AR-Topk, STAR", lambda c, **options: c.topk(scheme="star", **options), _TOPK_OPTIONS),
    "var": Method("AR-Topk, VAR", lambda c, **options: c.topk(scheme="var", **options), _TOPK_OPTIONS),
    "artopk": Method("AR-Topk, STAR or VAR", lambda c, **options: c.topk(scheme="artopk", **options), _TOPK_OPTIONS),
    "efsign": Method("EF-sign", lambda c, **options: c.efsign(**options), ("engine",)),
    **{f"int{bits}": Method(f"{bits} bits in blocks", partial(_blocks, bits), ("engine",)) for bits in (8, 4, 2)},
    "powersgd": Method("PowerSGD, rank 4", lambda c, **options: c.powersgd(**options), ("engine",)),
    "covap": Method("COVAP, one step in 4", lambda c, **options: c.covap(**options), ("engine",)),
}


def build_compression(compressions: Any, name: str, **options: Any) -> Any:
    """Build the compression, of a front end's `Compression`, with those options that are not None.

    Raises:
        click.UsageError: an option has no meaning for this method.
        ConfigError: a value is out of range.
    """
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in METHODS[name].options:
            raise click.UsageError(f"--{option} has no meaning with --compression {name}")
    return METHODS[name].build(compressions, **given)
