"""What all ranks remember, on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.errors import UsageError
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.session.session import Session
from hvd_compress.warned import warn_caller


def gathered(own: Mapping[str, Any], front: FrontEnd, session: Session | None = None) -> dict[str, Any]:
    """Return on the first rank of a front end what state_dict() has returned on each; the others get their own.

    Collective: over the engine of the session between two of its steps, so that it pairs with no collective of the
    program; before the first step, after the last, or where that engine joins a part of the ranks, over their group,
    where torch's own timeout counts.

    Raises CommunicationError, which names the ranks that have not come within HVD_COMPRESS_TIMEOUT_S; UsageError where
    ranks have no group, before the first step or after the last.
    """
    is_open = session is not None and session.policy is not None and not session.closed
    joins_all = session is not None and is_open and session.engine.world_size == front.world_size
    is_of_part = is_open and not joins_all
    if session is not None and session.failed and not is_of_part:  # else other ranks do not know of it
        warn_caller("an earlier exchange failed, so what other ranks remember is not gathered: this is of one rank")
        return dict(own)
    parts: list[Any] | None
    if session is not None and joins_all:
        parts = session.gathering.on_first(own["ranks"])
    elif front.group is not None:
        first = dist.get_process_group_ranks(front.group)[0]
        parts = [None] * front.world_size if dist.get_rank() == first else None
        dist.gather_object(own["ranks"], parts, dst=first, group=front.group)
    elif front.world_size > 1:
        if session is not None and session.last_step is not None:
            raise UsageError("this optimizer or model exchanges nothing any more: state_dict() is of one rank")
        raise UsageError("ranks have not met before their first step: call gathered_state_dict() after that")
    else:
        parts = None
    if parts is None:
        return dict(own)
    return {**own, "ranks": {name: each for part in parts for name, each in part.items()}}


GATHERS = "gathers"
"""Kind of state that holds a rank's part of the copies of gathered parameters."""


def with_gathers(state: dict[str, Any], saved: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return what checkpoint.save() returned of this rank, with what it remembers of gathered parameters."""
    ranks = {rank: {**own, "states": {**own["states"], GATHERS: dict(saved)}} for rank, own in state["ranks"].items()}
    return {**state, "ranks": ranks}


def without_gathers(state: Any) -> tuple[Any, dict[str, Mapping[str, torch.Tensor]]]:
    """Return a state as checkpoint.load() takes it, and by rank what with_gathers() has added."""
    ranks = state.get("ranks") if isinstance(state, Mapping) else None
    if not isinstance(ranks, Mapping):
        return state, {}
    found, left = {}, {}
    for rank, own in ranks.items():
        states = own.get("states") if isinstance(own, Mapping) else None
        if isinstance(states, Mapping) and GATHERS in states:
            found[rank] = states[GATHERS]
            own = {**own, "states": {kind: each for kind, each in states.items() if kind != GATHERS}}
        left[rank] = own
    return {**state, "ranks": left}, found
