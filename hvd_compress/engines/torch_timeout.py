"""How long a program lets torch.distributed wait: where that is its own limit, and a longer one, it is ours, too."""

from __future__ import annotations

from typing import Any

from torch import distributed as dist
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout

OF_TORCH = (default_pg_timeout, default_pg_nccl_timeout)


def own_timeout_s(group: dist.ProcessGroup | None = None) -> float:
    """Return the limit that the program has given a process group, by default all ranks'; 0 where it has given none.

    A limit of torch's own length cannot be told from none.
    """
    of: Any = group or dist.group.WORLD
    limits = [_limit(of._get_backend(device)) for device in of._device_types]
    return max((limit.total_seconds() for limit in limits if limit not in (None, *OF_TORCH)), default=0.0)


def _limit(backend: Any) -> Any:
    """None where a backend does not tell, as MPI's."""
    try:
        return backend.options._timeout
    except (AttributeError, RuntimeError):
        return None
