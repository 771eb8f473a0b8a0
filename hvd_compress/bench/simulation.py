"""The ranks of a job, simulated in one thread: every step of a compressor, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor, Input, Rounds, finish
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.measuring import timed
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class StepTiming:
    """What one step took.

    Attributes:
        encode_s: seconds of rank 0 until its last payload is made.
        decode_s: seconds of rank 0 from receiving the last round to the result.
        sent_bytes: of all payloads of all ranks, headers aside, divided by the number of ranks.
    """

    encode_s: float
    decode_s: float
    sent_bytes: float


@dataclass(frozen=True)
class Energy:
    """Squared norms, summed over ranks: of corrected, of transmitted, and of corrected - transmitted."""

    corrected: float
    transmitted: float
    lost: float


class SimulatedRank:
    """One rank: its gradient, which becomes the result, and what it remembers."""

    def __init__(self, compressor: Compressor, layout: Layout, rank: int, ranks: int) -> None:
        self._compressor, self._layout, self._rank, self._ranks = compressor, layout, rank, ranks
        self.gradient = torch.zeros(layout.numel)
        residual = Residual.zeros(layout.numel) if compressor.error_feedback else None
        self.state = BucketState(residual, dict(compressor.new_state(layout, torch.device("cpu"))))

    def rounds(self, step: int) -> Rounds:
        """Return the rounds of a step, in which `gradient` becomes the result."""
        return self._rounds(self.gradient, self.state, step, self._ranks)

    def _rounds(self, gradient: torch.Tensor, state: BucketState, step: int, ranks: int) -> Rounds:
        work = Input(gradient, self._layout, step, 0, 1.0 / ranks, state, self._rank, world_size=ranks)
        return self._compressor.rounds(work)

    def alone(self, step: int) -> Energy:
        """Return the energy of this rank in a step in which no other rank takes part; nothing remembers that step.

        transmitted is the result, and corrected = transmitted + what the step would keep. Of a compressor of several
        rounds it is what this rank would contribute if the others sent nothing.
        """
        gradient = self.gradient.clone()
        residual = self.state.residual
        kept = Residual(residual.current, torch.empty_like(residual.current)) if residual is not None else None
        rounds = self._rounds(gradient, BucketState(kept, dict(self.state.current)), step, 1)
        payload = next(rounds)
        for _ in self._compressor.wire(self._layout)[1:]:
            payload = rounds.send([_copy(payload)])
        finish(rounds, [_copy(payload)])
        lost = kept.pending if kept is not None else self.gradient - gradient
        return Energy(*(float(torch.linalg.vector_norm(x)) ** 2 for x in (gradient + lost, gradient, lost)))


def take_step(ranks: Sequence[SimulatedRank], compressor: Compressor, layout: Layout, step: int) -> StepTiming:
    """Exchange the gradients of all ranks, and commit what they remember.

    Where the payloads of all rounds may be summed, ranks receive their sum, as from an allreduce; else all payloads.
    """
    wire = compressor.wire(layout)
    summed = all(round_.sum_dtype is not None for round_ in wire)
    running = [rank.rounds(step) for rank in ranks]
    encode_s, sent_bytes = 0.0, 0
    received: list[Payload] | None = None
    for _ in wire:
        payloads, taken = _next_payloads(running, received)
        encode_s += taken
        sent_bytes += sum(payload.wire_bytes for payload in payloads)
        received = [_sum(payloads)] if summed else payloads
    assert received is not None
    for rounds in running[1:]:
        finish(rounds, [_copy(payload) for payload in received])
    own = [_copy(payload) for payload in received]
    decode_s = timed(lambda: finish(running[0], own))
    for rank in ranks:
        rank.state.commit()
    return StepTiming(encode_s, decode_s, sent_bytes / len(ranks))


def _next_payloads(running: Sequence[Rounds], received: Sequence[Payload] | None) -> tuple[list[Payload], float]:
    """Return the payloads of a round, and how long that of rank 0 took, which is made last."""
    made: list[Payload] = []

    def advance(rounds: Rounds, inbox: list[Payload] | None) -> None:
        made.append(next(rounds) if inbox is None else rounds.send(inbox))

    inboxes = [None if received is None else [_copy(payload) for payload in received] for _ in running]
    for rounds, inbox in zip(running[1:], inboxes[1:], strict=True):
        advance(rounds, inbox)
    taken = timed(lambda: advance(running[0], inboxes[0]))
    return [made[-1], *made[:-1]], taken


def _copy(payload: Payload) -> Payload:
    """What a rank receives is its own: compressors may work in it."""
    tensors = {name: tensor.clone() for name, tensor in payload.tensors.items()}
    return Payload(tensors, payload.numel, payload.summable)


def _sum(payloads: Sequence[Payload]) -> Payload:
    total = _copy(payloads[0])
    for payload in payloads[1:]:
        for name, tensor in total.tensors.items():
            tensor.add_(payload[name])
    return total
