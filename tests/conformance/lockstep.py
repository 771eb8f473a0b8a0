"""Compressors alone: some ranks take their rounds in turn, in one thread, without a collective or an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Compressor, Input
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Exchanged:
    """What came of one step: by rank the results and what is pending, and by round and rank what was sent."""

    results: list[torch.Tensor]
    states: list[BucketState]
    sent: list[list[Payload]]

    def commit(self) -> list[BucketState]:
        """Return what the ranks remember after the step."""
        for state in self.states:
            state.commit()
        return self.states


def fresh(compressor: Compressor, layout: Layout) -> BucketState:
    """Return what a rank remembers of a bucket before its first step."""
    residual = Residual.zeros(layout.numel) if compressor.error_feedback else None
    return BucketState(residual, dict(compressor.new_state(layout, CPU)))


def exchange(
    compressor: Compressor,
    layout: Layout,
    gradients: Sequence[torch.Tensor],
    states: Sequence[BucketState] | None = None,
    step: int = 0,
) -> Exchanged:
    """Take one step with these gradients, one a rank; each is sent the payloads of all in rank order."""
    states = states or [fresh(compressor, layout) for _ in gradients]
    ranks = [
        Input(own.clone(), layout, step, 0, 1 / len(gradients), state, rank, world_size=len(gradients))
        for rank, (own, state) in enumerate(zip(gradients, states, strict=True))
    ]
    rounds = [compressor.rounds(rank) for rank in ranks]
    sent = [[next(one) for one in rounds]]
    while True:
        received = [copied(payload) for payload in sent[-1]]
        following = [payload for one in rounds if (payload := _sent_on(one, received)) is not None]
        if not following:
            return Exchanged([rank.gradient for rank in ranks], list(states), sent)
        sent.append(following)


def _sent_on(rounds: object, received: Sequence[Payload]) -> Payload | None:
    try:
        found: Payload = rounds.send(received)  # type: ignore[attr-defined]
    except StopIteration:
        return None
    return found


def copied(payload: Payload) -> Payload:
    """Return what arrives: no rank writes into what another one has."""
    tensors = {name: tensor.clone() for name, tensor in payload.tensors.items()}
    return Payload(tensors, payload.numel, payload.summable)
