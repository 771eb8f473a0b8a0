"""The `Compression` namespace of the drop-in: Horovod's own members and ours."""

from __future__ import annotations

from hvd_compress import compression
from hvd_compress.frontends.horovod.runtime_selection import hvd


class Compression(compression.Compression, hvd.Compression):  # type: ignore[misc]
    """What to pass as `compression=` to DistributedOptimizer.

    `none` and `fp16` are the runtime's, as in Horovod. The others return a request to this package.
    """
