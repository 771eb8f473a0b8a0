"""The handshake: before the first exchange, make sure that all ranks mean the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError


@dataclass(frozen=True)
class Offer:
    """What a rank brings to the handshake.

    Attributes:
        settings: everything that must be equal on all ranks, in words.
        parameters: name, shape, dtype and device of each parameter that is exchanged, in words.
        order: parameter names in the order in which their gradients became ready; that of rank 0 counts.
        sparse: names of parameters with sparse gradients.
        step: the step at which to begin; that of rank 0 counts.
        obstacle: what keeps this rank from beginning, in words, or nothing: no other shall wait for it.
        resumes_with: what buckets and policy were when the checkpoint was saved that was loaded, in words, or nothing.
        choice: what the policy had chosen then; that of rank 0 counts, unless another rank has loaded something else.
    """

    settings: Mapping[str, str]
    parameters: Sequence[str]
    order: Sequence[str]
    sparse: Sequence[str]
    step: int
    obstacle: str = ""
    resumes_with: str = ""
    choice: str = ""


@dataclass(frozen=True)
class Agreement:
    """What all ranks go on with.

    Attributes:
        resumes: whether all have loaded the same buckets of a checkpoint.
        choice: of the policy, from that of rank 0, also where only that has loaded one, as in Horovod's examples.
    """

    order: tuple[str, ...]
    sparse: tuple[str, ...]
    step: int
    resumes: bool = False
    choice: str = ""


def agree(engine: Engine, offer: Offer) -> Agreement:
    """Compare the offers of all ranks and return what was agreed, the same on every rank. Two collectives.

    Raises:
        ConfigError: something hinders a rank, or ranks differ in settings or parameters; the message names all of it,
            and ranks by their numbers in the whole job. Every rank raises it.
    """
    digest = hashlib.sha256("\n".join(offer.parameters).encode()).hexdigest()
    message = {
        "settings": {**offer.settings, "parameters": digest},
        "order": list(offer.order) if engine.rank == 0 else [],
        "sparse": list(offer.sparse),
        "step": offer.step,
        "obstacle": offer.obstacle,
        "resumes_with": offer.resumes_with and hashlib.sha256(offer.resumes_with.encode()).hexdigest(),
        "choice": offer.choice if engine.rank == 0 else "",
    }
    answers = engine.allgather_json(message)
    obstacles = [
        f"rank {rank} {answer['obstacle']}"
        for rank, answer in zip(engine.ranks, answers, strict=True)
        if answer.get("obstacle")
    ]
    if obstacles:
        raise ConfigError("; ".join(obstacles))
    settings = [answer["settings"] for answer in answers]
    if any(other["parameters"] != settings[0]["parameters"] for other in settings):
        raise ConfigError(_parameter_difference(engine.ranks, engine.allgather_json(list(offer.parameters))))
    differences = [
        _setting_difference(key, engine.ranks, settings) for key in sorted({k for own in settings for k in own})
    ]
    if any(differences):
        raise ConfigError("settings differ between ranks: " + "; ".join(filter(None, differences)))
    loaded = [answer["resumes_with"] for answer in answers]
    return Agreement(
        order=tuple(answers[0]["order"]),
        sparse=tuple(sorted({name for answer in answers for name in answer["sparse"]})),
        step=int(answers[0]["step"]),
        resumes=all(own == loaded[0] for own in loaded),
        choice=answers[0]["choice"] if all(own in (loaded[0], "") for own in loaded) else "",
    )


def _setting_difference(key: str, numbers: Sequence[int], settings: Sequence[Mapping[str, str]]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, own in zip(numbers, settings, strict=True):
        ranks.setdefault(own.get(key, "not set"), []).append(rank)
    if len(ranks) == 1:
        return ""
    return f"{key} is " + " and ".join(f"{value} on {_name(where)}" for value, where in ranks.items())


def _parameter_difference(numbers: Sequence[int], lists: Sequence[Sequence[str]]) -> str:
    """Name the ranks whose parameters are not those of the first, and the first parameter that differs."""
    others = [rank for rank, own in zip(numbers, lists, strict=True) if own != lists[0]]
    root, first = numbers[0], next(own for own in lists if own != lists[0])
    for mine, theirs in zip(lists[0], first, strict=False):
        if mine != theirs:
            detail = f"rank {root} has {mine!r} where rank {others[0]} has {theirs!r}"
            break
    else:
        detail = f"rank {root} has {len(lists[0])} of them, rank {others[0]} has {len(first)}"
    return f"{_name(others)} optimizes other parameters than rank {root} (name, shape, dtype or device): {detail}"


def _name(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
