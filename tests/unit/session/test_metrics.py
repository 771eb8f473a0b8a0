"""The figures of a step: each has the name, and the unit, of what the step's report says."""

from __future__ import annotations

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, Cast, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.request.decision import Decision
from hvd_compress.session.metrics import StepMetrics
from hvd_compress.session.report import StepReport

REPORT = StepReport(
    step=7,
    compress_s=1.5,
    communicate_s=2.5,
    decompress_s=3.5,
    wait_s=4.5,
    sent_bytes=100,
    dense_bytes=400,
    finite=False,
    bus_bytes=9,
    nonfinite_steps=2,
)


def test_of_a_step() -> None:
    metrics = StepMetrics()
    assert metrics.figures() == {}
    travelled = [
        (Layout.of((4,)), Decision(BlockQuantizer(4), Path("alltoall-allgather"), "cpu", "")),
        (Layout.of((15,)), Decision(Cast(), Path("dense"), "cpu", "")),
        (Layout.of((1,)), Decision(TopK(0.25), Path("star", "ring"), "cpu", "")),
        (Layout.of((0,)), Decision(BlockQuantizer(3, 256, coded=True), Path("allgather"), "cpu", "")),
    ]
    metrics.end_step(REPORT, travelled)
    assert metrics.figures() == {
        "step": 7.0,
        "compress_s": 1.5,
        "communicate_s": 2.5,
        "decompress_s": 3.5,
        "wait_s": 4.5,
        "sent_bytes": 100.0,
        "dense_bytes": 400.0,
        "ratio": 0.25,
        "finite": 0.0,
        "nonfinite_steps": 2.0,
        "decision/int4 alltoall-allgather": 0.2,
        "decision/dense": 0.75,
        "decision/topk 0.25 star-ring": 0.05,
        "decision/int3 coded allgather": 0.0,
    }
