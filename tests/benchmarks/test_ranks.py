"""The script of benchmarks/ranks, on few ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ranks import __main__ as script
from benchmarks.ranks import counted, predicted
from hvd_compress.buckets.layout import Layout

LAYOUT = Layout.of((64, 64))


@pytest.mark.parametrize("path", counted.paths(counted.COMPRESSORS["dense"], LAYOUT, 4), ids=str)
def test_without_compression_the_model_counts_what_is_sent(path: counted.Path) -> None:
    for count in counted.counts(counted.COMPRESSORS["dense"], path, LAYOUT, 4, limit_s=600.0):
        if count.modelled is not None and path.collective != "parameter-server":  # whose buckets have headers
            assert count.mean_bytes == count.modelled
        assert count.most_bytes >= count.mean_bytes


def test_what_would_hold_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "MOST_BYTES", 200_000)
    found = counted.counts(counted.COMPRESSORS["int4"], counted.Path("allgather"), LAYOUT, 8, limit_s=600.0)
    assert [count.ranks for count in found] == [2]


def test_auto_compresses_on_a_slow_network() -> None:
    arms = predicted.arms("near", 50e-6, 8e-9, 8)
    assert arms[0].called == "dense"
    assert min(arms, key=lambda arm: arm.predicted).called == "int4"


def test_the_tables_and_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "COMPRESSORS", {name: counted.COMPRESSORS[name] for name in ("dense", "int4")})
    script.main(["--most", "4", "--out", str(tmp_path)])
    text = (tmp_path / "tables.md").read_text()
    assert "| 65536 | dense | dense-ring | 4 | 393,216 | 1.000 | 0 |" in text
    assert "| 4 | 1201 | int4 by alltoall-allgather |" in text
    assert (tmp_path / "ranks.png").stat().st_size > 10_000
