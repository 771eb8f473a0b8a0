"""What a session remembers, as a dictionary for a checkpoint, and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.feedback.states import RESULT_SUM
from hvd_compress.session.session import Session
from hvd_compress.warned import warn_caller


def save(session: Session, rank: int, world_size: int, shard: str = "") -> dict[str, Any]:
    """Return what the session remembers, all on the CPU.

    "ranks" holds, under the name of this rank, its residuals and compressors' states by parameter name: what saves all
    ranks into one file by the names of tensors, as torch.distributed.checkpoint does, mixes no ranks up. Before the
    first exchange they are zeros, and what compressors begin with, so that such a file can be loaded into them. `shard`
    says, behind that name, of which part of the parameters they are, where a rank has not all.
    """
    residuals, states = _remembered(session)
    return {
        "step": session.step,
        "loss_scale": session.loss_scale.scale,
        "buckets": _cuts(session),
        "choice": session.policy.chosen() if session.policy is not None else session.loaded.choice,
        "remembers": bool(residuals or states),
        "ranks": {name_of(rank, world_size) + shard: {"residuals": residuals, "states": states}},
    }


def _cuts(session: Session) -> list[list[str]]:
    if session.policy is None:
        return [list(names) for names in session.loaded.cuts]
    return [list(layout.names) for layout in session.buckets.layouts] if session.cuts_stand else []


def _remembered(session: Session) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]:
    """Return copies of residuals and compressors' states, as States has them; before open() what they will be."""
    residuals, states = session.states.state_dict(), session.states.own_state_dict()
    compressor = session.request.compressor
    if session.policy is not None or not compressor.error_feedback:
        return residuals, states
    for name, slot in session.parameters.items():
        layout = slot.layout(name)
        if layout.dtype == torch.float64:
            continue  # travels dense
        residuals.setdefault(name, torch.zeros(layout.numel))
        for (kind, _), tensor in compressor.new_state(layout, torch.device("cpu")).items():
            states.setdefault(kind, {}).setdefault(name, tensor)
        if session.request.allocates_sum:
            states.setdefault(RESULT_SUM, {}).setdefault(name, torch.zeros(layout.numel))
    return residuals, states


def load(
    session: Session,
    saved: Mapping[str, Any],
    numels: Mapping[str, int],
    rank: int,
    world_size: int,
    shard: str = "",
) -> None:
    """Load what save() returned, of this version or an earlier one. Nothing is communicated.

    Residuals of another rank, or of a job of another size, start from zero; where all ranks of that job have saved
    theirs in one place, from the mean over them: the average of gradients gets what none has sent. The step counter is
    taken over before the first exchange, and only counts after it, because all ranks must agree.

    Args:
        numels: numel of the gradient of each parameter that there is, by name.
        shard: as in save(). Residuals of other shards are of other elements: no mean is taken of them.

    Raises:
        ConfigError: it is not what save() returns, or of unknown parameters or other lengths; nothing has changed then.

    Warns where residuals are not loaded.
    """
    saved = _by_rank(saved)
    wrong = _what_is_wrong(saved)
    if wrong:
        raise ConfigError(
            f"rank {rank}: this is not the state of a compression: {wrong}; load what state_dict() returned"
        )
    name, ranks = name_of(rank, world_size) + shard, saved["ranks"]
    if name not in ranks and not shard and _is_complete(ranks):
        ranks = {name: _mean([ranks[each] for each in _names(len(ranks))])}
    whose = name if name in ranks else min(ranks)
    residuals, states = ranks[whose]["residuals"], ranks[whose]["states"]
    if whose != name:
        if saved["remembers"] or residuals:
            warn_caller(
                f"residuals of {whose} are not loaded on {name}, which starts from zero: save and load one checkpoint "
                "a rank to keep them"
            )
        residuals = {}
        states = {kind: {n: t for n, t in own.items() if n in numels} for kind, own in states.items()}
    elif saved["remembers"] and not residuals and not states:
        warn_caller(
            f"the checkpoint of step {saved['step']} holds no residuals for {name}, which starts from zero: load what "
            "state_dict() returned as a whole"
        )
    if session.last_step is not None:  # an epoch goes on that these are not of
        states = {kind: own for kind, own in states.items() if kind != RESULT_SUM}
    try:
        session.states.load_state_dict(residuals, numels, states)
    except ValueError as error:
        raise ConfigError(f"rank {rank}: {error}") from error
    session.buckets.claim()
    if session.last_step is None:
        session.step = saved["step"]
        session.loaded.cuts = tuple(map(tuple, saved["buckets"]))
        session.loaded.choice = saved.get("choice", "")
        held = {kind for kind, own in states.items() if own}
        held |= {"residual"} if any(bool(each.any()) for each in residuals.values()) else set()
        session.loaded.kinds = frozenset(held)
    if saved["loss_scale"] is not None:
        session.loss_scale.scale = saved["loss_scale"]


def require_all_ranks(saved: Any) -> None:
    """Raise ConfigError for a state that does not hold what all ranks of a job remember."""
    ranks = saved.get("ranks") if isinstance(saved, Mapping) else None
    if not isinstance(ranks, Mapping) or not _is_complete({str(name).partition(",")[0] for name in ranks}):
        held = ", ".join(map(str, ranks)) if isinstance(ranks, Mapping) and ranks else "none"
        raise ConfigError(
            f"this is not the state of all ranks of a job, but of {held}: save on rank 0 what gathered_state_dict() "
            "returns there, which all ranks call; load_state_dict() takes the state of a rank"
        )


def _is_complete(ranks: Collection[str]) -> bool:
    return bool(ranks) and all(name in ranks for name in _names(len(ranks)))


def _names(world_size: int) -> list[str]:
    return [name_of(rank, world_size) for rank in range(world_size)]


def _mean(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of what ranks remember, of what all of them have: where they are equal, the same to the bit."""
    residuals = _mean_of([each["residuals"] for each in ranks])
    kinds = [kind for kind in ranks[0]["states"] if all(kind in each["states"] for each in ranks)]
    return {
        "residuals": residuals,
        "states": {kind: _mean_of([each["states"][kind] for each in ranks]) for kind in kinds},
    }


def _mean_of(tensors: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    found = {}
    for name, first in tensors[0].items():
        others = [each[name] for each in tensors if name in each and each[name].shape == first.shape]
        if len(others) == len(tensors):
            found[name] = first
            if first.is_floating_point():
                found[name] = first + sum(other - first for other in others) / len(others)
    return found


def name_of(rank: int, world_size: int) -> str:
    """Return what a rank is called in a checkpoint."""
    return f"rank {rank} of {world_size}"


def _by_rank(saved: Any) -> Any:
    """Return what an earlier version has saved, which named no rank at a tensor, as save() does."""
    if not isinstance(saved, Mapping) or "ranks" in saved or not {"rank", "world_size", "residuals"} <= saved.keys():
        return saved
    own = {"residuals": saved["residuals"], "states": saved.get("states", {})}
    kept = {key: value for key, value in saved.items() if key in ("step", "loss_scale")}
    return {**kept, "buckets": [], "remembers": False, "ranks": {name_of(saved["rank"], saved["world_size"]): own}}


def _what_is_wrong(saved: Any) -> str:
    """Say why this cannot have come from save(), or nothing."""
    if not isinstance(saved, Mapping):
        return f"it is a {type(saved).__name__}"
    missing = [key for key in ("step", "loss_scale", "buckets", "remembers", "ranks") if key not in saved]
    if missing:
        return f"{', '.join(missing)} are missing"
    odd = [] if type(saved["step"]) is int and 0 <= saved["step"] < 2**63 else ["step"]
    scale = saved["loss_scale"]
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        odd.append("loss_scale")
    if type(saved.get("choice", "")) is not str:  # earlier versions have none
        odd.append("choice")
    if type(saved["remembers"]) is not bool:
        odd.append("remembers")
    if not _holds_names(saved["buckets"]):
        odd.append("buckets")
    ranks = saved["ranks"]
    if not isinstance(ranks, Mapping) or not ranks or not all(isinstance(name, str) for name in ranks):
        return ", ".join([*odd, "ranks"]) + " are not what they should be"
    for name, own in ranks.items():
        whole = isinstance(own, Mapping) and own.keys() == {"residuals", "states"}
        if not whole or not _holds_tensors(own["residuals"]):
            odd.append(f"residuals of {name}")
        elif not isinstance(own["states"], Mapping) or not all(map(_holds_tensors, own["states"].values())):
            odd.append(f"states of {name}")
    return f"{', '.join(odd)} are not what they should be" if odd else ""


def _holds_names(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value
    )


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(tensor, torch.Tensor) for tensor in value.values())
