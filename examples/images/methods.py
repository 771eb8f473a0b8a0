"""The names on the command line, and the compression behind each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

import hvd_compress.torch as hvd


@dataclass(frozen=True)
class Method:
    """A way to exchange gradients: what it is called, how it is built, which options of the command line it takes.

    `value_bytes` is what Horovod's own compressions send for a value; those of hvd_compress report their bytes.
    """

    label: str
    build: Callable[..., Any]
    options: tuple[str, ...] = ()
    value_bytes: int = 4


_TOPK_OPTIONS = ("ratio", "algorithm", "engine")


def _auto(ratio: float | None = None, **options: Any) -> Any:
    """Leave everything to the controller, or all but the ratio."""
    return hvd.Compression.auto(**options) if ratio is None else hvd.Compression.topk(ratio, scheme="auto", **options)


METHODS = {
    "none": Method("dense, Horovod's own", lambda: hvd.Compression.none),
    "fp16": Method("fp16, Horovod's own", lambda: hvd.Compression.fp16, value_bytes=2),
    "bf16": Method("bf16", hvd.Compression.bf16, ("engine",)),
    "dense": Method("dense", hvd.Compression.dense, ("algorithm", "engine")),
    "auto": Method("chosen while training", _auto, ("ratio", "engine")),
    "topk": Method("top-k, all-gather", partial(hvd.Compression.topk, scheme="allgather"), _TOPK_OPTIONS),
    "star": Method("AR-Topk, STAR", partial(hvd.Compression.topk, scheme="star"), _TOPK_OPTIONS),
    "var": Method("AR-Topk, VAR", partial(hvd.Compression.topk, scheme="var"), _TOPK_OPTIONS),
    "artopk": Method("AR-Topk, STAR or VAR", partial(hvd.Compression.topk, scheme="artopk"), _TOPK_OPTIONS),
    "efsign": Method("EF-sign", hvd.Compression.efsign, ("engine",)),
    "powersgd": Method("PowerSGD, rank 4", hvd.Compression.powersgd, ("engine",)),
}


def build_compression(name: str, **options: Any) -> Any:
    """Build the compression with those options that are not None.

    Raises:
        click.UsageError: an option has no meaning for this method.
        ConfigError: a value is out of range.
    """
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in METHODS[name].options:
            raise click.UsageError(f"--{option} has no meaning with --compression {name}")
    return METHODS[name].build(**given)
