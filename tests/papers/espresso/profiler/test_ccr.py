"""The ratio that the environment asks for, of a job whose ranks are threads of this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends import recorded
from hvd_compress.frontends.recorded import recorded_once
from hvd_compress.papers.espresso.profiler.settings import CcrSettings
from hvd_compress.session import ccr
from hvd_compress.settings import Settings
from tests.harness import alone, backward, on_engine
from tests.papers.espresso.profiler.profiled import REQUEST

STEPS = 9


def settings(file: Path, steps: int, skip: int) -> Settings:
    return Settings(fusion_threshold_bytes=600, timeout_s=60, recordings=(CcrSettings(file, steps, skip),))


def train(engine: InProcessEngine, given: Settings, asks_at: int | None = None, steps: int = STEPS) -> list[bool]:
    """Return after which steps rank 0 had written the file; the program asks for one step, too."""
    parameters, optimizer = on_engine(engine, REQUEST, settings=given)
    found = []
    for step in range(steps):
        if step == asks_at:
            of(optimizer).profile_ccr(1)
        backward(parameters, engine.rank, step)
        optimizer.step()
        optimizer.zero_grad()
        found.append(given.recordings[0].file.exists())
    optimizer.retire()
    return found


@pytest.mark.parametrize(
    ("skip", "asks_at", "written", "steps"),
    [
        (0, None, 3, 2),
        (1, None, 3, 2),
        (3, None, 5, 2),
        (6, 3, 8, 2),  # the program's ratio is of steps that were to be skipped
        (6, 5, 7, 1),  # the program's ratio serves
    ],
)
def test_it_is_written_once(skip: int, asks_at: int | None, written: int, steps: int, tmp_path: Path) -> None:
    given = settings(tmp_path / "ccr.json", 2, skip)
    first = run_ranks(2, lambda engine: train(engine, given, asks_at))[0]
    assert first == [step >= written for step in range(1, STEPS + 1)]
    said = json.loads(given.recordings[0].file.read_text())
    assert (said["steps"], said["ranks"], said["step"]) == (steps, 2, written - 1), "from 0 on"
    assert said["ratio"] == pytest.approx(said["communicate_s"] / said["backward_s"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ccr.json"]


def test_ranks_must_ask_for_the_same(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        with pytest.raises(ConfigError, match=r"HVD_COMPRESS_CCR is 0 \+ 2 steps on rank 0 and 0 \+ 3 steps on rank 1"):
            train(engine, settings(tmp_path / "ccr.json", 2 + engine.rank, 0))

    run_ranks(2, body)


def test_a_model_without_one_clock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def several(parameters: object) -> torch.device:
        raise UnsupportedError("its parameters lie on several devices")

    monkeypatch.setattr(ccr, "device_of", several)
    with pytest.raises(UnsupportedError, match="lie on several devices"):
        on_engine(alone(), REQUEST, settings=settings(tmp_path / "ccr.json", 2, 0))


@pytest.mark.parametrize(("steps", "is_left"), [(2, True), (STEPS, False)])
def test_what_ends_before_leaves_it_to_the_next(
    steps: int, is_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_taken", False)
    given = settings(tmp_path / "ccr.json", 2, 3)
    with recorded_once(given) as own:
        assert own == given
        run_ranks(1, lambda engine: train(engine, own, steps=steps))
    with recorded_once(given) as own:
        assert bool(own.recordings) == is_left
