"""The scripts of benchmarks/schedules: every method is a compression, and a training of each kind runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.request.request import Request
from tests.benchmarks.scripts import FOLDER, load
from tests.harness import backward, on_engine


@pytest.mark.parametrize(("script", "names"), [("accuracy", "METHODS"), ("loss", "VARIANTS")])
def test_every_method_is_a_compression(script: str, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in getattr(load(f"schedules/{script}.py", monkeypatch), names).values():
        made = method[0]() if isinstance(method, tuple) else method()
        assert isinstance(made, Request)


def test_adaqs_leaves_a_level_where_gradients_become_noisier(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = load("schedules/accuracy.py", monkeypatch).METHODS

    def body(engine: InProcessEngine) -> list[int]:
        parameters, optimizer = on_engine(engine, methods["AdaQS, powersgd 1, 2, 4"]())
        ranks = []
        for epoch in range(4):
            optimizer.zero_grad()
            backward(parameters, engine.rank, 0, lambda *where, mean=4.0**-epoch: _noisy(mean, *where))
            optimizer.step()
            optimizer.end_epoch()
            ranks.append(max(each.compressor.rank for each in optimizer.decisions.values()))
        return ranks

    assert run_ranks(2, body) == [[1, 2, 4, 4]] * 2


def _noisy(mean: float, name: str, shape: tuple[int, ...], rank: int, step: int) -> torch.Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return mean + noise - noise.mean()


@pytest.mark.parametrize("script", ["accuracy.py", "loss.py", "masks.py", "hiding.py", "cost.py"])
def test_a_script_says_what_it_does(script: str) -> None:
    path = FOLDER / "schedules" / script
    done = subprocess.run(
        [sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout or "usage:" in done.stdout
