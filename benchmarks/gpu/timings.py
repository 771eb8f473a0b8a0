"""Times of kernels, as medians over inputs that take turns, and what they are in bytes a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.calls import forced
from benchmarks.gpu.case import Case, Data, Run
from benchmarks.gpu.cases import BOUNDS_MS, TIMES_TORCH, cases
from benchmarks.gpu.cub import CubTopk
from benchmarks.gpu.items import FaultyError, Item
from benchmarks.gpu.scales import SCALES, Scale
from hvd_compress import native

HEAD_START_CYCLES = 2_000_000
"""About a millisecond, in which the host launches what is measured: Python takes up to 0.1 ms for a call."""
WARM_UP, WARM_UP_S = 5, 0.03
"""Calls before those that count, and seconds on a GPU."""
IDLE_S = 0.5
"""What an idle GPU may take to come to its clock."""
BOUND_CARD = "H200"
TAIL = "tail of topk_accumulate, 64 MiB"
TAIL_BOUND_US = 35.0
"""What top-k of a bucket may take beyond a pass that corrects, in microseconds on an H200."""


def items(device: torch.device, scale: Scale, library: Path) -> dict[str, Item]:
    """Return one item a case, and the tail; the value of a case is a row of the table. `library`: of cub, if built."""
    cub = CubTopk(library) if library.exists() and device.type == "cuda" else None
    copy = _Copy(device, scale)
    made = cases(scale, device, cub)
    found: dict[str, Item] = {name: partial(figure, name, make, copy) for name, make in made.items()}
    found[TAIL] = partial(tail, device, scale)
    return found


class _Copy:
    """The bandwidth of a copy in this process, reads and writes counted: measured once."""

    def __init__(self, device: torch.device, scale: Scale) -> None:
        self.device, self.scale = device, scale
        self._bytes_per_s: float | None = None

    @property
    def bytes_per_s(self) -> float:
        if self._bytes_per_s is None:
            numel, device = self.scale.numel, self.device
            _wake(device)
            pairs = [(torch.randn(numel, device=device), torch.empty(numel, device=device)) for _ in range(2)]
            seconds = median_s(lambda i: pairs[i][1].copy_(pairs[i][0]), device, self.scale.repetitions)
            self._bytes_per_s = 8 * numel / seconds
        return self._bytes_per_s


def figure(name: str, make: Callable[[], Case], copy: _Copy) -> dict[str, object]:
    """Return a row of the table. Raises FaultyError, with what is known by then, where a peer fails.

    `missed` says which bounds are not kept: that in ms on an H200, and how much faster than torch a kernel has to be.
    """
    bandwidth, case, device, scale = copy.bytes_per_s, make(), copy.device, copy.scale
    kernel_s = median_s(case.run, device, scale.repetitions)
    row: dict[str, object] = {
        "numel": case.numel,
        "ms": 1e3 * kernel_s,
        "bytes": case.nbytes,
        "gb_per_s": case.nbytes / kernel_s / 1e9,
        "of_copy": case.nbytes / kernel_s / bandwidth,
        "copy_gb_per_s": bandwidth / 1e9,
        "bound_ms": None,
        "missed": [],
        "torch_ms": None,
        "cub_ms": None,
    }
    for peer, run in (("torch", case.torch), ("cub", case.cub)):
        if run is not None:
            try:
                row[f"{peer}_ms"] = 1e3 * median_s(run, device, scale.peer_repetitions)
            except Exception as error:
                raise FaultyError(f"its peer of {peer}: {type(error).__name__}: {error}", row) from error
    if scale == SCALES["full"]:
        row["bound_ms"], row["missed"] = BOUNDS_MS.get(name), missed_bounds(name, row, is_bound_to(device))
    return row


def missed_bounds(name: str, row: Mapping[str, Any], in_ms: bool) -> list[str]:
    """Return the bounds of a case that its row does not keep. `in_ms`: whether those in milliseconds hold."""
    found = []
    if in_ms and row["ms"] > BOUNDS_MS.get(name, float("inf")):
        found.append(f"{BOUNDS_MS[name]:g} ms")
    if row["torch_ms"] < TIMES_TORCH.get(name, 0.0) * row["ms"]:
        found.append(f"{TIMES_TORCH[name]:g} times as fast as torch")
    return found


def is_bound_to(device: torch.device) -> bool:
    """Whether bounds in milliseconds hold for this GPU."""
    return device.type == "cuda" and BOUND_CARD in torch.cuda.get_device_name(device)


def tail(device: torch.device, scale: Scale) -> dict[str, object]:
    """Return by how much top-k of a bucket takes longer than the pass over memory that it cannot do without."""
    data = Data(scale.bucket, device, None)
    k = data.k(0.01)
    topk_s, pass_s = (
        median_s(run, device, scale.repetitions)
        for run in (
            lambda i: native.topk_accumulate(data.grads[i], data.residuals[i], k),
            lambda i: native.accumulate(data.grads[i], data.residuals[i]),
        )
    )
    tail_us = 1e6 * (topk_s - pass_s)
    return {
        "numel": scale.bucket,
        "topk_us": 1e6 * topk_s,
        "accumulate_us": 1e6 * pass_s,
        "tail_us": tail_us,
        "bound_us": TAIL_BOUND_US,
        "missed": is_bound_to(device) and tail_us > TAIL_BOUND_US,
    }


def crossover_items(device: torch.device, scale: Scale) -> dict[str, Item]:
    """Return one item a size: the queue and the bracket around where kQueueMaxNumel is to lie."""
    return {f"{numel:,} elements": partial(crossover, numel, device, scale) for numel in scale.few}


def crossover(numel: int, device: torch.device, scale: Scale) -> list[dict[str, float]]:
    """Return milliseconds of both ways for each k."""
    _wake(device)
    data, rows = Data(numel, device, None), []
    for k in scale.ks:
        row = {"numel": float(numel), "k": float(k)}
        for way in ("queue", "bracket"):
            with forced(device, way):
                run: Run = lambda i: native.topk_accumulate(data.grads[i], data.residuals[i], k)  # noqa: B023, E731
                row[way] = 1e3 * median_s(run, device, scale.repetitions)
        rows.append(row)
    return rows


def median_s(run: Run, device: torch.device, repetitions: int) -> float:
    """Return the median of the seconds of a call."""
    clock = _on_gpu if device.type == "cuda" else _on_cpu
    begun_s, calls = time.perf_counter(), 0
    while calls < WARM_UP or (device.type == "cuda" and time.perf_counter() - begun_s < WARM_UP_S):
        clock(partial(run, calls % 2))
        calls += 1
    return statistics.median(clock(partial(run, repetition % 2)) for repetition in range(repetitions))


def _wake(device: torch.device) -> None:
    """Give a GPU work until it has its full clock."""
    begun_s, x = time.perf_counter(), torch.ones(1 << 22, device=device)
    while device.type == "cuda" and time.perf_counter() - begun_s < IDLE_S:
        x.add_(1.0)
        torch.cuda.synchronize()


def _on_gpu(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HEAD_START_CYCLES)  # an idle GPU would be timed waiting for Python
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _on_cpu(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
