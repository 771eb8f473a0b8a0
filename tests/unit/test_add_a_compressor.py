"""The compressor of docs/add_a_compressor.md trains, and keeps what that page promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from tests.harness import backward, flat_gradient, flat_residual, gradient, on_engine

PAGE = Path(__file__).parents[2] / "docs" / "add_a_compressor.md"
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def compressor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """The class that the page defines, in a module of its own."""
    (tmp_path / "of_the_page.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found: type = __import__("of_the_page").LargestOfEach
    return found


def test_the_page_is_as_short_as_it_says() -> None:
    assert len(CODE.splitlines()) <= 40


@pytest.mark.parametrize("size", [1, 3])
def test_its_compressor_trains(compressor: type, size: int) -> None:
    def train(engine: InProcessEngine) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        parameters, optimizer = on_engine(engine, Compression.of(compressor(20)))
        steps = []
        for step in range(3):
            before = flat_residual(optimizer, parameters)
            own = torch.cat([gradient(name, p.shape, engine.rank, step).reshape(-1) for name, p in parameters.items()])
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            steps.append((before + own, flat_residual(optimizer, parameters), flat_gradient(parameters)))
            optimizer.zero_grad()
        return steps

    ranks = run_ranks(size, train)
    for step in range(3):
        sent = []
        for corrected, residual, result in (steps[step] for steps in ranks):
            kept = residual != 0
            assert torch.equal(residual[kept], corrected[kept])
            sent.append(torch.where(kept, 0.0, corrected))
            assert torch.equal(result, ranks[0][step][2])
        torch.testing.assert_close(ranks[0][step][2], torch.stack(sent).double().mean(0).float(), rtol=1e-6, atol=1e-7)
        assert 0.04 < float((sent[0] != 0).double().mean()) < 0.08


def test_what_is_no_compressor_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a compressor"):
        Compression.of(0.01)  # type: ignore[arg-type]
