"""The benchmark of whole steps, on so few elements that it takes no time."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from benchmarks.kernels import encode


@pytest.mark.parametrize("clock", [[], ["--cpu-time"]])
def test_every_step_has_its_row_beside_the_floor(clock: list[str]) -> None:
    before = torch.get_num_threads()
    try:
        result = CliRunner().invoke(encode.main, ["--size", "20000", "--rounds", "2", "--threads", "1", *clock])
    finally:
        torch.set_num_threads(before)
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[1].strip() for line in result.output.splitlines() if line.startswith("| ")]
    assert rows == ["step", "---", "floor", *encode.COMPRESSORS]
    assert set(encode.BOUNDED) <= set(encode.COMPRESSORS)


def test_steps_follow_each_other() -> None:
    for name, compressor in encode.COMPRESSORS.items():
        step = encode.step_of(compressor, torch.randn(5000, generator=torch.Generator().manual_seed(1)), 3)
        first, second = step(), step()
        values = next(iter(first.tensors.values()))
        assert values.numel() > 0, name
        assert any(not torch.equal(a, second.tensors[key]) for key, a in first.tensors.items()), name


def test_the_time_of_one_thread_needs_one_thread() -> None:
    result = CliRunner().invoke(encode.main, ["--threads", "2", "--cpu-time"])
    assert result.exit_code == 2
    assert "needs --threads 1" in result.output
