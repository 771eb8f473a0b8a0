"""The parts of a check, in the order of their value, and the items of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.frame.store import ROOT
from benchmarks.gpu.items import Item
from benchmarks.gpu.scales import Scale

BUILT = ROOT / "build" / "gpu"
CCCL = ROOT / "build" / "cccl"


@dataclass(frozen=True)
class Place:
    """Where items run.

    Attributes:
        scale: how much they do.
        headers: folder of CCCL, for cub.
        left_s: seconds that the process may take.
    """

    device: torch.device
    scale: Scale
    headers: Path = CCCL
    left_s: float = 3600.0


@dataclass(frozen=True)
class Part:
    """Items that run in a process of their own, one after the other.

    Attributes:
        needs_s: seconds on an H200 without which it is not begun.
        item_s: seconds after which an item is taken for hanging.
        items: makes them. What a part imports, another one may be without.
    """

    needs_s: float
    item_s: float
    items: Callable[[Place], Mapping[str, Item]]


def _build(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import building

    return building.items(place.device, BUILT, place.headers)


def _small(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import parity

    return parity.small_items(place.device, place.scale)


def _large(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import parity

    return parity.large_items(place.device, place.scale)


def _timings(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import timings

    return timings.items(place.device, place.scale, BUILT / "cub_topk.so")


def _graphs(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import graphs

    return graphs.items(place.device, place.scale)


def _queue(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import timings

    return timings.crossover_items(place.device, place.scale)


def _training(place: Place) -> Mapping[str, Item]:
    from benchmarks.gpu import two_ranks

    return two_ranks.items(place.device, place.scale, 0.9 * place.left_s)


PARTS = {
    "build": Part(0.0, 1800.0, _build),
    "parity": Part(20.0, 120.0, _small),
    "large": Part(30.0, 120.0, _large),
    "timings": Part(30.0, 60.0, _timings),
    "graphs": Part(15.0, 60.0, _graphs),
    "queue": Part(10.0, 60.0, _queue),
    "training": Part(60.0, 600.0, _training),
}
