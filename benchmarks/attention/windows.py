"""Held-out text: windows of the whole context, each of which is one sequence, and the loss of a model on each."""

from __future__ import annotations

from typing import Any

import torch
from text import Text
from torch.nn.functional import cross_entropy

WINDOWS = 256
"""Of the held-out bytes, evenly spaced; none overlaps another."""
SAMPLES = 64
"""Windows of the training part, from which clusters are found."""
BATCH = 16


def held_out(text: Text, context: int, windows: int = WINDOWS) -> torch.Tensor:
    """Return int64 (windows, context) of files that no model was trained on."""
    return spaced(text.validation, context, windows)


def samples(text: Text, context: int, windows: int = SAMPLES) -> torch.Tensor:
    """Return int64 (windows, context) of files that the model was trained on."""
    return spaced(text.train, context, windows)


def spaced(text: torch.Tensor, context: int, windows: int) -> torch.Tensor:
    starts = torch.linspace(0, len(text) - context, windows).long()
    assert windows < 2 or int(starts.diff().min()) >= context, "windows overlap"
    return text[starts[:, None] + torch.arange(context)].long()


@torch.no_grad()
def losses(model: Any, windows: torch.Tensor, batch: int = BATCH) -> torch.Tensor:
    """Return the loss in nats of each byte but the first of each window, float64 (windows, context - 1)."""
    found = []
    for part in windows.split(batch):
        logits = model(part, use_cache=False).logits[:, :-1]
        each = cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none")
        found.append(each.view(len(part), -1).double())
    return torch.cat(found)
