"""The benchmark of whole steps, on so few elements that it takes no time."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from tests.benchmarks.scripts import load


@pytest.mark.parametrize("clock", [[], ["--cpu-time"]])
def test_every_step_has_its_row_beside_the_floor(clock: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script, before = load("kernels/encode.py", monkeypatch), torch.get_num_threads()
    try:
        result = CliRunner().invoke(script.main, ["--size", "20000", "--rounds", "2", "--threads", "1", *clock])
    finally:
        torch.set_num_threads(before)
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[1].strip() for line in result.output.splitlines() if line.startswith("| ")]
    assert rows == ["step", "---", "floor", *script.COMPRESSORS]
    assert set(script.BOUNDED) <= set(script.COMPRESSORS)


def test_steps_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load("kernels/encode.py", monkeypatch)
    for name, compressor in script.COMPRESSORS.items():
        step = script.step_of(compressor, torch.randn(5000, generator=torch.Generator().manual_seed(1)), 3)
        first, second = step(), step()
        values = next(iter(first.tensors.values()))
        assert values.numel() > 0, name
        assert any(not torch.equal(a, second.tensors[key]) for key, a in first.tensors.items()), name


def test_the_time_of_one_thread_needs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(load("kernels/encode.py", monkeypatch).main, ["--threads", "2", "--cpu-time"])
    assert result.exit_code == 2
    assert "needs --threads 1" in result.output
