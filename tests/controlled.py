"""What tests of the controller share: buckets that it knows, and what their exchanges are priced at."""

from __future__ import annotations

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import TopK
from hvd_compress.controller.expected import Bucket
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import Costs, Prediction, predict
from hvd_compress.policies.adaptive import bucket_of


def known_bucket(numel: int, ratio: float, ways: tuple[Path, ...], dtype: torch.dtype = torch.float32) -> Bucket:
    """A bucket of one parameter, of which a sparsifier sends `ratio` at first."""
    return bucket_of(Layout.of(numel, dtype=dtype), TopK(ratio), ways)


def predicted(path: Path, numel: int, ratio: float, costs: Costs, compress_s: float = 0.0) -> Prediction:
    """What a bucket of fp32 gradients would take."""
    stages = known_bucket(numel, ratio, (path,)).stages(path, ratio, costs.world_size)
    return predict(path, stages, costs, compress_s)
