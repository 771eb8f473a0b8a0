"""What is measured for a policy: every call of what is open."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, Compressor, TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.policies.open_paths import open_collectives
from hvd_compress.policies.prices import measure
from hvd_compress.request.request import Request

LAYOUT = Layout.of(1 << 16)


@pytest.mark.parametrize("compressors", [[BlockQuantizer(4)], [BlockQuantizer(4), TopK(0.1)]])
def test_all_collectives_have_a_curve(
    compressors: list[Compressor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))

    def body(engine: InProcessEngine) -> dict:
        found = [each for of in compressors for each in open_collectives(Request(of), LAYOUT, engine.capabilities)]
        keys = {(stage.verb, stage.algorithm) for collective in found for stage in collective.stages(LAYOUT, 2)}
        assert ("alltoall", "auto") in keys
        prices = measure(engine, [([[collective] for collective in found], LAYOUT)], 0.05)
        assert prices is not None
        assert set(prices.curves.by_key) == keys
        return dict(prices.curves.by_key)

    first, second = run_ranks(2, body)
    assert first == second
