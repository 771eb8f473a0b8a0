"""What results become, and how gradients flow back through a collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_compress.runtime.world import ProcessSet


def set_size(process_set: ProcessSet) -> int:
    """Return how many ranks a process set has."""
    return process_set.size() or 1


def results_at(tensors: Sequence[torch.Tensor], one: bool = False) -> Callable[[list[Any]], Any]:
    """Return what brings results to the devices of `tensors`."""

    def finish(results: list[Any]) -> Any:
        found = tuple(result.to(tensor.device) for result, tensor in zip(results, tensors, strict=True))
        return found[0] if one else found

    return finish


def results_into(outputs: Sequence[torch.Tensor], one: bool = False) -> Callable[[list[Any]], Any]:
    """Return what has results written to `outputs`, where the runtime did not."""

    @torch.no_grad()
    def finish(results: list[Any]) -> Any:
        for result, output in zip(results, outputs, strict=True):
            if result.data_ptr() != output.data_ptr() or result.device != output.device:
                output.copy_(result)
        return outputs[0] if one else tuple(outputs)

    return finish


def differentiable(run: Callable[..., Any], back: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Return what `run` makes of tensors; gradients flow back by `back`."""
    return _Differentiable.apply(run, back, *tensors)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], back: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        ctx.back = back
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *ctx.back(*gradients)
