"""One bucket from step to step on ranks of several hosts: what tests of collectives that heed hosts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hvd_compress.collectives.groups import leaders, within_host
from hvd_compress.compressors import Compressor
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from tests.unit.collectives.steps import NUMEL, Step, steps

STEPS, RATIO = 4, 0.1
PLACES = {
    "2 hosts": (0, 0, 1, 1),
    "unequal": (0, 0, 0, 1, 1),
    "3 hosts": (0, 0, 1, 1, 2, 2),
    "by turns": (0, 1, 0, 1),
    "1 host": (0, 0, 0),
    "1 rank each": (0, 1, 2),
}


@dataclass(frozen=True)
class Seen(Step):
    """One step of one rank, and what it sent: over its host, across hosts, over all."""

    verbs: list[str]
    sent_within: int
    sent_across: int
    sent: int


Crossing = Callable[[Engine], Engine | None]
"""Gives the ranks among which a collective goes across hosts."""


def train(
    engine: InProcessEngine, compressor: Compressor, collective: str, across: Crossing = leaders, **arguments: object
) -> list[Seen]:
    """Exchange one bucket for some steps; arguments as `steps`."""
    groups = [within_host(engine), across(engine), engine]

    def sent() -> list[int]:
        return [group.sent_bytes if group is not None else 0 for group in groups]

    engine.take_calls()
    before, history = sent(), []
    for step in steps(engine, compressor, collective, STEPS, **arguments):
        after, verbs = sent(), [call.verb for call in engine.take_calls()]
        moved = [b - a for a, b in zip(before, after, strict=True)]
        history.append(Seen(step.result, step.residual, step.finite, verbs, *moved))
        before = after
    return history


def exchanged(compressor: Compressor, collective: str, hosts: tuple[int, ...], **arguments: object) -> list[list[Seen]]:
    return run_ranks(len(hosts), lambda engine: train(engine, compressor, collective, **arguments), hosts=hosts)


def largest(x: torch.Tensor) -> torch.Tensor:
    """Mask of the k largest magnitudes."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[torch.argsort(x.abs(), descending=True, stable=True)[: max(1, round(RATIO * x.numel()))]] = True
    return mask


def lose(corrected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is transmitted, and what is remembered."""
    sent = torch.where(largest(corrected), corrected, 0.0)
    return sent, corrected - sent


def require_followed(
    ranks: Sequence[Sequence[Seen]], restated: Sequence[tuple[torch.Tensor, list[torch.Tensor]]]
) -> None:
    """Raise AssertionError where results and residuals are not those of a plain restatement, step by step."""
    for step, (result, kept) in enumerate(restated):
        for rank, history in enumerate(ranks):
            torch.testing.assert_close(history[step].result, result, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(history[step].residual, kept[rank], rtol=1e-5, atol=1e-6)


def groups_of(hosts: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each host."""
    return [[rank for rank, own in enumerate(hosts) if own == host] for host in sorted(set(hosts))]


PAYLOAD = 8 * round(RATIO * NUMEL)
HEADER = 96
"""Of a packed payload, at most."""
