"""The compressor of docs/add_a_compressor.md trains, and keeps what that page promises."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, PayloadError, UsageError
from tests.harness import alone, backward, flat_gradient, flat_residual, gradient, on_engine, use

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
            use(parameters.values())
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


def test_what_is_no_compressor_is_refused(compressor: type) -> None:
    class Unfrozen(compressor):  # type: ignore[misc]
        def __init__(self, share: float) -> None:
            super().__init__(20)

    for wrong in (0.01, compressor):
        with pytest.raises(ConfigError, match="is not a compressor"):
            Compression.of(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Unfrozen is no frozen dataclass"):
        Compression.of(Unfrozen(0.1))


def test_a_size_that_wire_does_not_say_is_refused(compressor: type) -> None:
    @dataclass(frozen=True)
    class Greedy(compressor):  # type: ignore[misc]
        def select(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.arange(x.numel(), dtype=torch.int32), x

    def train(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, Compression.of(Greedy(20)))
        backward(parameters, engine.rank, 0)
        optimizer.synchronize()
        use(parameters.values())

    with pytest.raises(PayloadError, match=r"Greedy\(.*run=20\) sends \d+ bytes, and its wire\(\) says \d+"):
        run_ranks(2, train)


def test_a_nan_that_is_not_selected_is_seen_by_all(compressor: type) -> None:
    @dataclass(frozen=True)
    class Careless(compressor):  # type: ignore[misc]
        def select(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return super().select(x.nan_to_num(0.0))

    def train(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor]:
        parameters, optimizer = on_engine(engine, Compression.of(Careless(20)))
        if engine.rank == 1:
            parameters["first.weight"].register_hook(lambda own: own.index_fill(1, torch.tensor(3), torch.nan))
        backward(parameters, engine.rank, 0)
        optimizer.synchronize()
        use(parameters.values())
        return flat_gradient(parameters), flat_residual(optimizer, parameters)

    for result, residual in run_ranks(2, train):
        assert not bool(result.isfinite().all())
        assert not bool(residual.any())


def test_a_plan_cannot_name_it(compressor: type, tmp_path: Path) -> None:
    parameters, optimizer = on_engine(alone(), Compression.of(compressor(20)))
    backward(parameters, 0, 0)
    optimizer.step()
    with pytest.raises(UsageError, match=r"a plan cannot hold LargestOfEach\(.*run=20\)"):
        of(optimizer).save_plan(tmp_path / "plan.json")
