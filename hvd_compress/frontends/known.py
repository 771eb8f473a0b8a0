"""Whose compression a program asks for: each front end says what it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hvd_compress.errors import UsageError
from hvd_compress.frontends.handle import Handle

_front_ends: list[Callable[[Any], Handle | None]] = []


def register(known: Callable[[Any], Handle | None]) -> None:
    """Ask a front end, too; when it is imported. `known` returns the handle of what it compresses, None of others."""
    _front_ends.append(known)


def find(trained: Any) -> Handle | None:
    """Return the handle of a compressed training; None of what is not compressed."""
    return next((handle for known in _front_ends if (handle := known(trained)) is not None), None)


def of(trained: Any) -> Handle:
    """Return the handle of a compressed training, as `hvd_compress.of`."""
    if (handle := find(trained)) is not None:
        return handle
    raise UsageError(
        f"this {type(trained).__name__} is not compressed: pass the model that compress() was called for (of FSDP2 the "
        "root module, in Lightning trainer.strategy.model during fit(), in transformers trainer.model_wrapped), or the "
        "optimizer that DistributedOptimizer() has returned; of local steps what LocalSteps() or local_steps() has "
        "returned, or the callback's `local`. Compression.none and fp16 of hvd_compress.torch have no "
        "handle: take dense() or half()"
    )


def state_dict(model: Any) -> dict[str, Any]:
    """Return what this rank's compression of a model remembers, as hvd_compress.of(model).state_dict()."""
    return of(model).state_dict()


def load_state_dict(model: Any, state: Mapping[str, Any]) -> None:
    """Load what state_dict() gave, as hvd_compress.of(model).load_state_dict()."""
    of(model).load_state_dict(state)


def moved(called: str, name: str) -> str:
    """Say where what earlier versions had is now; nothing where it is not there."""
    stands = name in vars(Handle) and not name.startswith("_")
    return f"{called} is hvd_compress.of(...).{name} now" if stands else ""
