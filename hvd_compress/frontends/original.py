"""The model that its gradients are known by, beneath what others put around it."""

from __future__ import annotations

from typing import Any


def original_of(model: Any) -> Any:
    """Return the model that torch.compile or Lightning's Fabric has put a module of its own around, or else itself."""
    model = getattr(model, "_forward_module", model)
    return getattr(model, "_orig_mod", model)
