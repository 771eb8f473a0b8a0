"""What a run remembers of its choices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.events.history import KEPT, Event, History
from hvd_compress.events.log import Log
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, make_optimizer, make_parameters


def test_a_full_disk_ends_the_log_and_not_the_training() -> None:
    seen: list[Event] = []
    history = History([Log(Path("/dev/full")), seen.append])
    with pytest.warns(RuntimeWarning, match=r"HVD_COMPRESS_LOG: /dev/full ends here: .*No space left"):
        history.add(Event(1, "choice", 0))
    history.add(Event(2, "window", 0))
    assert list(history) == seen == [Event(1, "choice", 0), Event(2, "window", 0)]


def test_memory_does_not_grow_for_ever() -> None:
    history = History()
    for step in range(KEPT + 5):
        history.add(Event(step, "window", 0))
    assert len(history) == KEPT
    assert [event.step for event in history][-1] == KEPT + 4


def test_steps_are_not_kept_where_nothing_is_to_choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gradients of float64 are not compressed, so there is no controller, and ranks never compare times."""
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    settings = Settings(600, 60, adapt=True, calibration_s=0.0)

    def body(engine: InProcessEngine) -> object:
        parameters, request = make_parameters(dtype=torch.float64), Request(TopK(0.05))
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, settings=settings)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.step()
        return of(optimizer).controller

    assert run_ranks(2, body) == [None, None]


def test_buckets_bear_the_numbers_that_they_have_among_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is chosen for those of float64, which come first here, as in a timeline and in errors."""
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    settings = Settings(600, 60, adapt=True, calibration_s=0.0)

    def body(engine: InProcessEngine) -> tuple[set[int], set[int]]:
        made = make_parameters().items()
        late = {n: torch.nn.Parameter(p.detach().double() if n.startswith("second") else p.detach()) for n, p in made}
        optimizer = make_optimizer(late, Request(TopK(0.05)), lambda: engine, engine.rank, 2, settings=settings)
        for step in range(25):
            backward(late, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        open_ = {number for number, way in enumerate(of(optimizer).decisions.values()) if "float64" not in way.reason}
        return open_, {
            e.bucket for e in of(optimizer).controller.history if e.compressor != "Cast(dtype=None)"
        } or open_

    for open_, seen in run_ranks(2, body):
        assert seen - {-1} == open_ != set(range(len(open_)))
