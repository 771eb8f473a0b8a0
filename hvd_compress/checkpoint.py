"""What a session remembers, as a dictionary for a checkpoint, and back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.session import ExchangeSession


def save(session: ExchangeSession, rank: int, world_size: int) -> dict[str, Any]:
    """Return this rank's residuals and compressors' states by parameter name, all on the CPU."""
    return {
        "rank": rank,
        "world_size": world_size,
        "step": session.step,
        "loss_scale": session.loss_scale.scale,
        "residuals": session.states.state_dict(),
        "states": session.states.own_state_dict(),
    }


def load(
    session: ExchangeSession, saved: Mapping[str, Any], numels: Mapping[str, int], rank: int, world_size: int
) -> None:
    """Load what save() returned. Residuals of another rank, or of a job of another size, start from zero.

    The step counter is taken over before the first exchange, and only counts after it, because all ranks must agree.

    Args:
        numels: numel of each parameter that there is, by name.

    Raises:
        ConfigError: it is not what save() returns, or of unknown parameters or other lengths; nothing has changed then.

    Warns where residuals are not loaded.
    """
    wrong = _what_is_wrong(saved)
    if wrong:
        raise ConfigError(
            f"rank {rank}: this is not the state of a compression: {wrong}; load what state_dict() returned"
        )
    residuals, states = saved["residuals"], saved.get("states", {})
    if (saved["rank"], saved["world_size"]) != (rank, world_size):
        warnings.warn(
            f"residuals of rank {saved['rank']} of {saved['world_size']} are not loaded on rank {rank} of "
            f"{world_size}, which starts from zero: save and load one checkpoint a rank to keep them",
            stacklevel=3,
        )
        residuals = {}
        states = {kind: {n: t for n, t in own.items() if n in numels} for kind, own in states.items()}
    try:
        session.states.load_state_dict(residuals, numels, states)
    except ValueError as error:
        raise ConfigError(f"rank {rank}: {error}") from error
    session.claim()
    if session.last_step is None:
        session.step = saved["step"]
    if saved["loss_scale"] is not None:
        session.loss_scale.scale = saved["loss_scale"]


def _what_is_wrong(saved: Any) -> str:
    """Say why this cannot have come from save(), or nothing."""
    if not isinstance(saved, Mapping):
        return f"it is a {type(saved).__name__}"
    missing = [key for key in ("rank", "world_size", "step", "loss_scale", "residuals") if key not in saved]
    if missing:
        return f"{', '.join(missing)} are missing"
    odd = [key for key in ("rank", "world_size", "step") if type(saved[key]) is not int or not 0 <= saved[key] < 2**63]
    scale = saved["loss_scale"]
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        odd.append("loss_scale")
    if not _holds_tensors(saved["residuals"]):
        odd.append("residuals")
    states = saved.get("states", {})
    if not isinstance(states, Mapping) or not all(map(_holds_tensors, states.values())):
        odd.append("states")
    return f"{', '.join(odd)} are not what they should be" if odd else ""


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(tensor, torch.Tensor) for tensor in value.values())
