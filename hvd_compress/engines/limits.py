"""How much one collective can move where the transport counts in C ints."""

from __future__ import annotations

from hvd_compress.errors import UnsupportedError

MAX_COUNT = 2**31 - 1
"""Elements in one call, and the highest place in a buffer, in MPI before version 4 of its standard and in Horovod."""


def require_countable(numel: int) -> None:
    """Raise UnsupportedError for more elements than one collective can count, over all ranks together."""
    if numel > MAX_COUNT:
        raise UnsupportedError(
            f"{numel} elements in one collective are more than the transport can count ({MAX_COUNT}); lower the "
            "fusion threshold so that buckets get smaller"
        )
