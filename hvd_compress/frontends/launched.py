"""Is this process one of several, and what is to be done where it has not met the others?"""

from __future__ import annotations

import os

from torch import distributed as dist

from hvd_compress.engines.mpi_environment import SIZES


def has_several_ranks() -> bool:
    """Whether this process is one of several, by torch.distributed or by its launcher."""
    if has_met():
        return dist.get_world_size() > 1
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in SIZES)


def has_met() -> bool:
    """Whether torch.distributed has begun."""
    return dist.is_available() and dist.is_initialized()


def before_wrapping() -> str:
    """Return what to do before a model can be wrapped, as the begin of a sentence; nothing where it can be."""
    if has_met():
        return ""
    return "launch the program with torchrun, call torch.distributed.init_process_group(), then "
