"""Kernels captured in CUDA graphs, replayed with other inputs, and compared with calls without a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu.calls import CALLS, WAITING, Call, Inputs, Tensors
from benchmarks.gpu.items import Item
from benchmarks.gpu.parity import DTYPES, require_equal
from benchmarks.gpu.scales import Scale
from hvd_compress import native

RATIO = 0.01
REPLAYS = 2


def items(device: torch.device, scale: Scale) -> dict[str, Item]:
    """Return one item a kernel; its value is how often it was captured. One that makes the host wait cannot be."""
    return {name: partial(replayed, call, scale.graph, device) for name, call in CALLS.items() if name not in WAITING}


def replayed(call: Call, numel: int, device: torch.device) -> int:
    for dtype in DTYPES:
        inputs = _inputs(numel, dtype, device)
        found, replay = capture(call, inputs)
        for _ in range(REPLAYS):
            fresh = _inputs(numel, dtype, device)
            inputs.grad.copy_(fresh.grad)
            inputs.residual.copy_(fresh.residual)
            expected = call(fresh)
            replay()
            native.check_pending()
            require_equal(found, expected)
    return len(DTYPES)


def _inputs(numel: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    grad, residual = (torch.randn(numel, device=device).to(dtype) for _ in range(2))
    return Inputs.placed(grad, residual, int(RATIO * numel), 0, True, device)


def capture(call: Call, inputs: Inputs) -> tuple[Tensors, Callable[[], None]]:
    """Return the results of a captured call, and what replays it. A CPU, without graphs, calls again instead."""
    if inputs.grad.device.type == "cuda":
        return _capture(call, inputs)
    found = call(inputs)

    def again() -> None:
        for ours, theirs in zip(found, call(inputs), strict=True):
            ours.copy_(theirs)

    return found, again


def _capture(call: Call, inputs: Inputs) -> tuple[Tensors, Callable[[], None]]:
    """As torch asks, the first call is not captured, and runs in another stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(_inputs(inputs.numel, inputs.grad.dtype, inputs.grad.device))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(inputs)
    return found, graph.replay
