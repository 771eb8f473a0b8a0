"""What a training's loggers show of its compression."""

from __future__ import annotations

import sys
from typing import Any

from hvd_compress.errors import UsageError
from hvd_compress.front.ddp.state import known_state
from hvd_compress.front.handle import Handle
from hvd_compress.front.optimizer.optimizer import ReducingOptimizer


def metrics(trained: Any) -> dict[str, float]:
    """Return the figures of the last step, as `hvd_compress.metrics`."""
    handle = _handle_of(trained)
    if handle is None:
        return {}
    handle.session.look()
    return handle.session.metrics()


def _handle_of(trained: Any) -> Handle | None:
    """Return what is asked; None where this rank takes part in no exchange. Raises UsageError."""
    if isinstance(trained, ReducingOptimizer):
        return trained.handle
    fsdp = sys.modules.get("hvd_compress.front.fsdp.api")  # it imports torch's FSDP, which takes long
    sharded: Handle | None = None if fsdp is None else fsdp.known_handle(trained)
    if sharded is not None:
        return sharded
    state = known_state(trained)
    if state is None:
        raise UsageError(
            f"this {type(trained).__name__} is not compressed: pass the model that compress() was called for (in "
            "Lightning trainer.strategy.model during fit(), in transformers trainer.model_wrapped), or the optimizer "
            "that DistributedOptimizer() has returned"
        )
    return state.handle
