"""What all ranks remember, on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import distributed as dist

from hvd_compress.engines.torch_distributed import TorchEngine
from hvd_compress.front.launched import has_met
from hvd_compress.session.session import Session
from hvd_compress.warned import warn_caller


def gathered(own: Mapping[str, Any], group: Any = None, session: Session | None = None) -> dict[str, Any]:
    """Return on the first rank of a process group, by default of all ranks, what state_dict() has returned on each.

    The others get their own. Collective, where torch.distributed has begun: over the engine of the session between two
    of its steps, so that it pairs with no collective of the program; before the first step, after the last, or where
    that engine is Horovod's or MPI's, over the group.

    Raises CommunicationError, which names the ranks that have not come within HVD_COMPRESS_TIMEOUT_S.
    """
    if not has_met():
        return dict(own)
    first = dist.get_process_group_ranks(group)[0]
    parts: list[Any] | None
    if session is not None and session.failed:
        warn_caller("an earlier exchange failed, so what other ranks remember is not gathered: this is of one rank")
        parts = None
    elif session is None or not session.connected or not isinstance(session.engine.control, TorchEngine):
        parts = [None] * dist.get_world_size(group) if dist.get_rank() == first else None
        dist.gather_object(own["ranks"], parts, dst=first, group=group)
    else:
        parts = session.gather(own["ranks"], first)
    if parts is None:
        return dict(own)
    return {**own, "ranks": {name: each for part in parts for name, each in part.items()}}
