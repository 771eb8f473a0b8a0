"""A simulator of timelines that is as simple as can be: one event after the other, lists that are searched each time.

It shares nothing with the one in C++ but what both are to compute: each lane serves one task at a time, in the order in
which tasks become ready, of those that do at the same time the earliest tensor's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRAINING = 0
Chain = Sequence[tuple[int, int]]
"""Lane and duration of each task of a tensor; a duration of 0 leaves it out."""


@dataclass
class Waiting:
    """A task that is ready and not done."""

    ready: int
    tensor: int
    lane: int
    duration: int
    then: list[tuple[int, int]]  # what is left of the chain
    computes: list[int]  # tensors whose gradients are there when it is done


def simulate(backward: Sequence[int], chains: Sequence[Chain]) -> int:
    """Return when all is done."""
    computations: list[tuple[int, list[int]]] = []
    for tensor, duration in enumerate(backward):
        if tensor == 0 or duration > 0:
            computations.append((duration, []))
        computations[-1][1].append(tensor)

    def next_computation(now: int) -> list[Waiting]:
        if not computations:
            return []
        duration, tensors = computations.pop(0)
        return [Waiting(now, tensors[0], TRAINING, duration, [], tensors)]

    def next_task(tensor: int, chain: Chain, now: int) -> list[Waiting]:
        real = [task for task in chain if task[1] > 0]
        if not real:
            return []
        return [Waiting(now, tensor, real[0][0], real[0][1], real[1:], [])]

    now, waiting, served = 0, next_computation(0), {}
    while waiting or served:
        for lane in {task.lane for task in waiting} - set(served):
            first = min((t for t in waiting if t.lane == lane), key=lambda t: (t.ready, t.tensor))
            waiting.remove(first)
            served[lane] = (now + first.duration, first)
        now = min(end for end, _ in served.values())
        for lane in [lane for lane, (end, _) in served.items() if end == now]:
            done = served.pop(lane)[1]
            for tensor in done.computes:
                waiting += next_task(tensor, chains[tensor], now)
            waiting += next_computation(now) if done.computes else next_task(done.tensor, done.then, now)
    return now
