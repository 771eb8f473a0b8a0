"""What is measured for a policy: every collective that it asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.cost.calibrate import measurable
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.policies.prices import FEW, measure


@pytest.mark.parametrize("few", [True, False])
def test_all_keys_have_a_curve(few: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An all-to-all, too, which is in no whole calibration."""
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))

    def body(engine: InProcessEngine) -> dict:
        whole = [key for key in measurable(engine) if key != ("alltoall", "auto")]
        keys = [("alltoall", "auto"), *whole][: 2 if few else None]
        assert (len(keys) <= FEW) == few
        prices = measure(engine, keys, 0.05)
        assert prices is not None
        assert set(keys) <= set(prices.curves.by_key)
        return dict(prices.curves.by_key)

    first, second = run_ranks(2, body)
    assert first == second
