"""A rank as Accelerate's launcher starts it; every warning is an error there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

COMPILER = "torch._dynamo.backends.common"
"""What torch.compile imports for its backends."""


@contextmanager
def launched(rank: int, ranks: int) -> Iterator[None]:
    """Around what a rank does, whose process group is there already."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(each) for name, each in place.items()})
    with strictly():
        yield


@contextmanager
def strictly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # of torch 2.15's compiler, with Python 3.14
        warnings.filterwarnings("ignore", "'_UnionGenericAlias' is deprecated", DeprecationWarning)
        yield
