"""Gradients of some buckets in other buckets, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hvd_compress.buckets.layout import Layout

Filled = tuple[Layout, torch.Tensor]
"""A bucket, and what lies in it, (numel,)."""


def regrouped(buckets: Sequence[Filled], layouts: Sequence[Layout]) -> list[Filled]:
    """Return copies of the gradients of all buckets in those of `buckets.plan.cut_as`."""
    parts = dict(_parts(buckets))
    return [(layout, torch.cat([parts[name] for name in layout.names])) for layout in layouts]


def put_back(results: Sequence[Filled], buckets: Sequence[Filled]) -> None:
    """Write what lies in `results` to where their parameters lie in `buckets`."""
    parts = dict(_parts(results))
    for name, part in _parts(buckets):
        part.copy_(parts[name])


def _parts(buckets: Sequence[Filled]) -> Iterator[tuple[str, torch.Tensor]]:
    for layout, flat in buckets:
        yield from zip(layout.names, torch.split(flat, list(layout.segments)), strict=True)
