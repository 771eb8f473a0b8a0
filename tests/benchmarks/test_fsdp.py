"""The table of losses under FSDP2, of what was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fsdp import loss as losses_of


def test_pairs_have_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_of, "FOLDER", tmp_path)
    for mesh, method, seed, loss in (
        ("4", "uncompressed", 0, 2.0),
        ("4", "uncompressed", 1, 3.0),
        ("4", "int8", 0, 2.1),
        ("4", "int8", 1, 3.3),
        ("2x2", "int4+gathers-int8", 1, 2.5),
    ):
        run = losses_of.Run(mesh, method, seed, 40)
        losses = [[20, loss - 0.1], [40, loss], [60, loss + 0.1]]
        bits = {"bits": None if method == "uncompressed" else 8.25, "parameter_bits": 8.38 if "+" in method else None}
        run.file.write_text(json.dumps({"losses": losses, **bits}))
    rows = losses_of.page(40, 2).splitlines()[2:]
    assert rows == [
        "| 4 | uncompressed | 32 | 32 | 2.5000 | +0.0000, +0.0000 | +0.0000 |",
        "| 4 | int8 | 8.25 | 32 | 2.7000 | +0.1000, +0.3000 | +0.2000 |",
        "| 2x2 | int4+gathers-int8 | 8.25 | 8.38 | 2.5000 | -0.5000 | -0.5000 |",
    ]
