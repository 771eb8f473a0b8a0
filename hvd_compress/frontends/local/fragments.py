"""Which parameters are exchanged together: fragments of a model, by layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def cut(sizes: Mapping[str, int], count: int) -> list[tuple[str, ...]]:
    """Return the names of each of `count` fragments, at most as many as there are layers, by names and their sizes.

    A layer, all parameters of one module, goes to the fragment that is the smallest so far, so that layers of one
    size are interleaved, as in Streaming DiLoCo (Douillard et al. 2025, section 2.2), and others are balanced. The same
    on all ranks, whose models are alike.
    """
    layers: dict[str, list[str]] = {}
    for name in sizes:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    fragments: list[list[str]] = [[] for _ in range(min(count, len(layers)))]
    filled = [0] * len(fragments)
    for names in layers.values():
        smallest = filled.index(min(filled))
        fragments[smallest] += names
        filled[smallest] += sum(sizes[name] for name in names)
    return [tuple(names) for names in fragments]


def due(step: int, every: int, count: int) -> list[int]:
    """Return the fragments whose exchange begins after local step `step` (from 1 on): each once in `every` steps.

    The last one is due at the end of a round, the others as far apart as steps allow.
    """
    place = (step - 1) % every + 1
    return [number for number, own in enumerate(_places(every, count)) if own == place]


def turn(step: int, every: int, count: int) -> tuple[int, int]:
    """Return the steps of a round, from 0 on, at which exchanges begin before and after step `step`, at most every."""
    places = [0, *_places(every, count)]
    return max(each for each in places if each <= step), min((each for each in places if each > step), default=every)


def _places(every: int, count: int) -> Sequence[int]:
    """Return after which step of a round each fragment is due."""
    return [-(-every * (number + 1) // count) for number in range(count)]
