"""What clusters are compared with: heads whose keys and values both go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from hvd_compress.attention.first_tokens import FIRST

BATCH = 8


@torch.no_grad()
def importance(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Return for each head the mean norm of what it adds to the hidden states, over all tokens of windows: float64
    (layers, heads)."""
    blocks, heads = model.transformer.h, model.config.n_head
    sums = torch.zeros(len(blocks), heads, dtype=torch.float64)

    def see(layer: int, projection: Any, outputs: torch.Tensor) -> None:
        own = projection.weight.unflatten(0, (heads, -1))
        added = torch.einsum("bthd,hdw->bthw", outputs.unflatten(-1, (heads, -1)), own)
        sums[layer] += added.norm(dim=-1).double().sum((0, 1))

    with ExitStack() as stack:
        for layer, block in enumerate(blocks):
            hook = block.attn.c_proj.register_forward_pre_hook(
                lambda projection, args, layer=layer: see(layer, projection, args[0])
            )
            stack.callback(hook.remove)
        for part in windows.split(BATCH):
            model(part, use_cache=False)
    return sums / windows.numel()


def least(importances: torch.Tensor, count: int) -> list[tuple[int, int]]:
    """Return the layer and number of so many heads, those of least importance in all layers."""
    order = importances.flatten().argsort(stable=True)[:count].tolist()
    return [divmod(each, importances.shape[1]) for each in order]


@contextmanager
def without(model: Any, dropped: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Within the block these heads, by layer and number, add nothing from the sixth token of a sequence on, as clusters
    begin there."""
    heads = model.config.n_head

    def drop(args: tuple[torch.Tensor], mine: list[int]) -> tuple[torch.Tensor]:
        outputs = args[0].unflatten(-1, (heads, -1)).clone()
        outputs[:, FIRST:, mine] = 0
        return (outputs.flatten(-2),)

    with ExitStack() as stack:
        for layer in {layer for layer, _ in dropped}:
            mine = [head for where, head in dropped if where == layer]
            projection = model.transformer.h[layer].attn.c_proj
            hook = projection.register_forward_pre_hook(lambda _, args, mine=mine: drop(args, mine))
            stack.callback(hook.remove)
        yield
