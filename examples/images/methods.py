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

    `build` takes the `Compression` of a front end, and the ratio where that is an option. `value_bytes` is what
    Horovod's own compressions send for a value; those of hvd_compress report their bytes.
    """

    label: str
    build: Callable[..., Any]
    options: tuple[str, ...] = ()
    value_bytes: int = 4


_TOPK_OPTIONS = ("ratio", "algorithm", "engine")


def _auto(compressions: Any, ratio: float | None = None) -> Any:
    """Leave everything to be chosen, or the path of top-k."""
    return compressions.auto() if ratio is None else compressions.topk(ratio)


def _blocks(bits: int, compressions: Any) -> Any:
    return getattr(compressions, f"int{bits}")()


def _topk(collective: str, compressions: Any, **ratio: float) -> Any:
    return compressions.topk(**ratio).by(collective=collective)


METHODS = {
    "none": Method(
        "uncompressed", lambda c: c.none
    ),  # Horovod's own, as fp16 is; DDP's hook takes the place of its own
    "fp16": Method("fp16", lambda c: c.fp16, value_bytes=2),
    "bf16": Method("bf16", lambda c: c.bf16(), ("engine",)),
    "dense": Method("dense", lambda c: c.dense(), ("algorithm", "engine")),
    "auto": Method("chosen while training", _auto, ("ratio", "engine")),
    "topk": Method("top-k, all-gather", partial(_topk, "allgather"), _TOPK_OPTIONS),
    "star": Method("AR-Topk, STAR", partial(_topk, "star"), _TOPK_OPTIONS),
    "var": Method("AR-Topk, VAR", partial(_topk, "var"), _TOPK_OPTIONS),
    "artopk": Method("AR-Topk, STAR or VAR", partial(_topk, "artopk"), _TOPK_OPTIONS),
    "efsign": Method("EF-sign", lambda c: c.efsign(), ("engine",)),
    **{f"int{bits}": Method(f"{bits} bits in blocks", partial(_blocks, bits), ("engine",)) for bits in (8, 4, 3, 2)},
    "powersgd": Method("PowerSGD, rank 4", lambda c: c.powersgd(), ("engine",)),
    "covap": Method("COVAP, one step in 4", lambda c: c.covap(), ("engine",)),
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
    said = {option: given.pop(option) for option in ("algorithm", "engine") if option in given}
    built = METHODS[name].build(compressions, **given)
    return built.by(**said) if said else built
