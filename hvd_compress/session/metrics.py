"""What a step was like, in figures: for TensorBoard, a log, and whatever logger a program has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Compressor
from hvd_compress.policies.plan_settings import compressor_of, name_of, settings_called
from hvd_compress.request.decision import Decision
from hvd_compress.services.base import BucketMetrics
from hvd_compress.session.bucket import SessionBucket
from hvd_compress.session.report import StepReport


class StepMetrics:
    """The figures of the last step.

    Attributes:
        front: those that a front end has of its own, by name.
    """

    def __init__(self) -> None:
        self.front: Mapping[str, float] = {}
        self._report: StepReport | None = None
        self._travelled: list[tuple[Layout, Decision]] = []
        self._asked: frozenset[int] = frozenset()  # numbers of buckets whose errors nobody else wants
        self._relative_error = math.nan  # of the last step of which it was wanted

    def look(self, buckets: Sequence[SessionBucket]) -> None:
        """Measure in the coming step what compression does not send: two or three passes over gradients more.

        Between two steps, on any rank: nothing is communicated.
        """
        unknown = [bucket for bucket in buckets if bucket.probe.ks is None and not bucket.layout.sparse]
        for bucket in unknown:
            bucket.probe = replace(bucket.probe, ks=())
        self._asked |= {bucket.number for bucket in unknown}

    def observe(self, exchanges: Sequence[BucketMetrics]) -> list[BucketMetrics]:
        """Take what was measured of the buckets of a step, by number; return what the policy has asked for."""
        if self._asked:
            self._relative_error = _relative_error(exchanges)
        return [_without_sample(each) if number in self._asked else each for number, each in enumerate(exchanges)]

    def end_step(self, report: StepReport, travelled: Sequence[tuple[Layout, Decision]]) -> None:
        """A step is over, in which buckets have travelled so."""
        self._report, self._travelled, self._asked = report, list(travelled), frozenset()

    def figures(self) -> dict[str, float]:
        """Return all of them by name; none before the first step."""
        report = self._report
        if report is None:
            return {}
        found = {
            "step": float(report.step),
            "sent_bytes": float(report.sent_bytes),
            "dense_bytes": float(report.dense_bytes),
            "wait_s": report.wait_s,
            "compress_s": report.compress_s,
            "communicate_s": report.communicate_s,
            "decompress_s": report.decompress_s,
            "finite": float(report.finite),
            "nonfinite_steps": float(report.nonfinite_steps),
        }
        if report.dense_bytes:
            found["ratio"] = report.sent_bytes / report.dense_bytes
        if report.dense_parameter_bytes:
            found["parameter_bytes"] = float(report.parameter_bytes)
            found["dense_parameter_bytes"] = float(report.dense_parameter_bytes)
        if math.isfinite(self._relative_error):
            found["relative_error"] = self._relative_error
        numel = sum(layout.numel for layout, _ in self._travelled)
        for layout, decision in self._travelled:
            name = f"decision/{_words(decision)}"
            found[name] = found.get(name, 0.0) + layout.numel / numel
        return {**found, **self.front}


def _relative_error(exchanges: Sequence[BucketMetrics]) -> float:
    """Return ||corrected - transmitted|| / ||corrected|| of all buckets with error feedback; NaN without any."""
    samples = [each.report.sample for each in exchanges]
    energies = [found for sample in samples if sample is not None and (found := sample.energies()) is not None]
    everything = sum(whole for whole, _ in energies)
    return math.sqrt(sum(left for _, left in energies) / everything) if everything else math.nan


def _without_sample(metrics: BucketMetrics) -> BucketMetrics:
    return replace(metrics, report=replace(metrics.report, sample=None))


def _words(decision: Decision) -> str:
    """Return a name without signs that loggers refuse, such as "int4 alltoall-allgather" or "topk 0.01 star-ring"."""
    called, path = _called(decision.compressor), str(decision.path).replace("+", " ")
    return called if called == path else f"{called} {path}"


def _called(compressor: Compressor) -> str:
    kind = name_of(compressor) or type(compressor).__name__
    for name, settings in compressor.functions.items():
        if compressor_of(settings_called(name)) == compressor:
            return name
        if getattr(compressor, "coded", False) and settings.items() <= vars(compressor).items():
            return f"{name} coded"
    size = next((getattr(compressor, each) for each in ("ratio", "rank", "bits") if hasattr(compressor, each)), None)
    return kind if size is None else f"{kind} {size:g}"
