"""The `Compression` namespace of the drop-in: Horovod's own members and ours."""

from __future__ import annotations

import horovod.torch

from hvd_compress import compression


class Compression(compression.Compression, horovod.torch.Compression):  # type: ignore[misc]
    """What to pass as `compression=` to DistributedOptimizer.

    `none` and `fp16` are Horovod's and take Horovod's own path. The others return a request to this package.
    """
