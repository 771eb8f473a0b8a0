"""The peers: communication hooks that come with torch, called as DistributedDataParallel calls them, with one rank."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

from hvd_compress.bench.compressors import WARM_UP, Figure, Floor, cosine, guarded, share
from hvd_compress.bench.inputs import Gradients
from hvd_compress.buckets.layout import Layout
from hvd_compress.errors import UsageError
from hvd_compress.measuring import timed

KIND = "torch hook"
RANK = 4
"""Of PowerSGD, as ours has it by default."""
DENSE_STEPS = 2
"""The fewest that torch's PowerSGD sends dense at first."""
_GROUPS: list[Any] = []
"""Process groups that were measured in. A callback of a hook may hold the group, and Gloo's own thread drops callbacks
after their future is complete: were that the last reference, the thread would join itself, and torch would abort."""


class Bucket:
    """What a hook sees of a bucket. torch.distributed.GradBucket cannot be made in Python, and hooks only call it."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._buffer = layout, torch.zeros(layout.numel)

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        parts = torch.split(self._buffer, list(self._layout.segments))
        return [part.view(shape) for part, shape in zip(parts, self._layout.shapes, strict=True)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


@dataclass(frozen=True)
class Hook:
    """A hook with the state that it is registered with, and the error that it keeps: what it has not sent."""

    name: str
    state: Any
    call: Callable[[Any, Any], torch.futures.Future[torch.Tensor]]
    error: Callable[[], torch.Tensor | None] = lambda: None

    def result(self, bucket: Bucket) -> torch.Tensor:
        """Call the hook, and wait for what DDP would copy to the gradients."""
        return self.call(self.state, bucket).wait()


def hooks() -> list[Hook]:
    """Return the hooks, as they are before the first step."""
    state = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=DENSE_STEPS)
    return [
        Hook("allreduce", None, default_hooks.allreduce_hook),
        Hook("fp16_compress", None, default_hooks.fp16_compress_hook),
        Hook("bf16_compress", None, default_hooks.bf16_compress_hook),
        Hook("quantization_pertensor", None, quantization_hooks.quantization_pertensor_hook),
        Hook("quantization_perchannel", None, quantization_hooks.quantization_perchannel_hook),
        Hook("powerSGD", state, powerSGD_hook.powerSGD_hook, lambda: state.error_dict.get(0)),
    ]


def measure_hooks(gradients: Gradients, rounds: int, progress: Callable[[str], object]) -> Iterator[Figure]:
    """Yield the figures of each hook, in a process group of one rank over Gloo; `progress` is told each name.

    The gradients are those of rank 0 of one. A hook encodes, sends and decodes in one call: what Gloo takes for
    nothing to do, about 0.1 ms, is part of its time. Bytes are those of the tensors that it gives to collectives.
    The group's threads stay until the process ends.

    Raises:
        UsageError: there is a process group already.
    """
    if dist.is_initialized():
        raise UsageError("torch's hooks are measured in a process group of their own, and this process has one already")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    _GROUPS.append(dist.group.WORLD)
    try:
        for hook in hooks():
            progress(hook.name)
            empty = Figure(hook.name, KIND, f"{hook.call.__name__}, 1 rank, Gloo", 1, gradients.layout.numel)
            yield guarded(empty, lambda hook=hook, empty=empty: _measured(empty, hook, gradients, rounds))  # type: ignore[misc]
    finally:
        dist.destroy_process_group()


def _measured(empty: Figure, hook: Hook, gradients: Gradients, rounds: int) -> Figure:
    bucket, floor, results = Bucket(gradients.layout), Floor(gradients.layout.numel), list[torch.Tensor]()
    seconds, cosines, sent = list[float](), list[float](), list[int]()
    first = DENSE_STEPS + WARM_UP
    for step in range(first + rounds):
        gradients.write(0, step, 1, bucket.buffer())
        dense = bucket.buffer().clone()
        floor.measure(bucket.buffer())
        results.clear()
        with _counted_bytes() as counted, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about its own
            seconds.append(timed(lambda: results.append(hook.result(bucket))))
        sent.append(sum(counted))
        cosines.append(cosine(results[0], dense))
    error = hook.error()
    lost = dense - results[0] if error is None else error
    corrected = _energy(results[0] + lost)
    return replace(
        empty,
        sent_bytes=statistics.mean(sent[first:]),
        both_s=statistics.median(seconds[first:]),
        floor_s=statistics.median(floor.seconds[first:]),
        gain=share(_energy(results[0]), corrected),
        lost=share(_energy(lost), corrected),
        cosine=statistics.mean(cosines[first:]),
    )


def _energy(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2


@contextmanager
def _counted_bytes() -> Iterator[list[int]]:
    """Note the bytes of each tensor that is given to torch.distributed's all_reduce or all_gather in the block."""
    found: list[int] = []
    before = dist.all_reduce, dist.all_gather

    def all_reduce(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        found.append(tensor.nbytes)
        return before[0](tensor, *arguments, **named)

    def all_gather(into: list[torch.Tensor], tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        found.append(tensor.nbytes)
        return before[1](into, tensor, *arguments, **named)

    try:
        for function in (all_reduce, all_gather):
            setattr(dist, function.__name__, function)
        yield found
    finally:
        for original in before:
            setattr(dist, original.__name__, original)
