"""What TensorBoard's own reader finds in the event file."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_compress import of
from hvd_compress.compressors import TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, MissingPackageError
from hvd_compress.events.history import Event, History
from hvd_compress.events.tensorboard import TensorBoard
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, on_engine

EVENTS = (
    Event(1, "ratio", 0, ratio=0.01, gain=0.3, reason="the knee"),
    Event(9, "choice", 0, "star-ring", 0.01, 0.004, 0.003, gain=0.25, reason="4.00 ms measured"),
    Event(13, "window", 0, "star-ring", 0.02, 0.0041, 0.003),
    Event(17, "network", reason="steps take another time than those before"),
    Event(18, "window", 1, "allgather", 0.01, 0.5, 0.25),
    Event(19, "rollout", 1, "allgather", 0.1, 0.7, gain=0.9, reason="taken back"),
    Event(19, "ratio", 1, ratio=0.02, gain=0.5, reason="the knee"),
    Event(22, "window", 1, "dense", 1.0, 0.6, 0.25, gain=0.4),
)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(item.step, pytest.approx(item.value)) for item in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_every_figure_has_its_tag(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "runs" / "first")
    history = History(watchers=[board])
    for event in EVENTS:
        history.add(event)
    board.close()
    assert scalars(tmp_path / "runs" / "first") == {
        "bucket 0/chosen_ratio": [(1, 0.01)],
        "bucket 0/expected_gain": [(1, 0.3)],
        "bucket 0/ratio": [(9, 0.01), (13, 0.02)],
        "bucket 0/gain": [(9, 0.25)],
        "bucket 0/measured_s": [(9, 0.004), (13, 0.0041)],
        "bucket 0/predicted_s": [(9, 0.003), (13, 0.003)],
        "bucket 1/ratio": [(18, 0.01), (22, 1.0)],
        "bucket 1/chosen_ratio": [(19, 0.02)],
        "bucket 1/expected_gain": [(19, 0.5)],
        "bucket 1/gain": [(22, 0.4)],
        "bucket 1/measured_s": [(18, 0.5), (22, 0.6)],
        "bucket 1/predicted_s": [(18, 0.25), (22, 0.25)],
    }


@pytest.mark.usefixtures("clock")
def test_rank_0_writes_what_its_history_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "cache"))

    def body(engine: InProcessEngine) -> History:
        settings = Settings(600, 60, adapt=True, calibration_s=0.0, tensorboard=tmp_path / "runs")
        parameters, optimizer = on_engine(engine, Request(TopK(0.05)), settings=settings)
        for step in range(40):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        optimizer._reducer.close()
        return of(optimizer).controller.history

    history = run_ranks(2, body)[0]
    chosen = [(event.step, event.ratio) for event in history if event.bucket == 2 and event.kind == "choice"]
    assert chosen
    found = scalars(tmp_path / "runs")["bucket 2/ratio"]
    assert all(each in found for each in chosen)
    assert len(list((tmp_path / "runs").glob("events.*"))) == 1


def test_a_full_disk_ends_it_and_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    board, late = TensorBoard(tmp_path / "early"), TensorBoard(tmp_path / "late")
    with monkeypatch.context() as patched:
        patched.setattr(board._writer, "add_scalar", refuse)
        with pytest.warns(RuntimeWarning, match=r"early ends here: .*No space left"):
            board(EVENTS[0])
        board(EVENTS[1])
        board.close()
        patched.setattr(late._writer, "close", refuse)
        with pytest.warns(RuntimeWarning, match=r"late ends here: .*No space left"):
            late.close()
    board._writer.close()
    late._writer.close()


def test_without_tensorboard_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'hvd_compress\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="HVD_COMPRESS_TENSORBOARD: cannot write"):
        TensorBoard(tmp_path / "file" / "runs")
