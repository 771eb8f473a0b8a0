"""What a bucket of fp32 gradients would take."""

from __future__ import annotations

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import Costs, Prediction, predict


def predicted(path: Path, numel: int, ratio: float, costs: Costs, compress_s: float = 0.0) -> Prediction:
    compressor = Cast() if path.collective == "dense" else TopK(ratio)
    return predict(path, collectives.stages(compressor, path, Layout.of(numel), costs.world_size), costs, compress_s)
