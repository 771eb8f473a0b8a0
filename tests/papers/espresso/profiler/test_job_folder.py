"""The folder of a job's profile: one job at a time, and what fails there ends no training."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, PlanError
from hvd_compress.papers.espresso.profiler import job
from hvd_compress.papers.espresso.profiler.folder import COMMAND, RUN, Claim, is_of
from hvd_compress.profiler.profiles import (
    COMPRESSOR,
    MODEL,
    PROGRESS,
    SYSTEM,
    CompressorProfile,
    ModelProfile,
    SystemProfile,
    read,
    write,
)
from tests.harness import backward, on_engine
from tests.papers.espresso.profiler.profiled import REQUEST, SKIP, STEPS, settings, train


def test_a_folder_that_cannot_be_written_is_an_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"rank 0 cannot write HVD_COMPRESS_PROFILE = .*: name what it can write"):
        run_ranks(2, lambda engine: train(engine, settings(file)))


def test_two_jobs_do_not_share_a_folder(tmp_path: Path) -> None:
    """All ranks of the second one are told so in their first step; the first one's profile is its own."""
    first = run_ranks(2, lambda engine: (engine, *on_engine(engine, REQUEST, settings=settings(tmp_path))))

    def goes_on(steps: int) -> None:
        def body(engine: InProcessEngine) -> None:
            own, parameters, optimizer = first[engine.rank]
            for step in range(steps):
                backward(parameters, own.rank, step)
                optimizer.step()
                optimizer.zero_grad()

        run_ranks(2, body)

    def second(engine: InProcessEngine) -> str:
        with pytest.raises(ConfigError) as raised:
            train(engine, settings(tmp_path), steps=1)
        return str(raised.value)

    goes_on(1)
    told = run_ranks(3, second)
    assert all(f"another profile is recorded into the folder {tmp_path}, by process " in words for words in told)
    goes_on(SKIP + STEPS - 1)
    assert "rank 0 of 2 on" in read(tmp_path / MODEL, ModelProfile).source
    for _, _, optimizer in first:
        optimizer.retire()
    run_ranks(1, lambda engine: train(engine, settings(tmp_path)) and None)
    assert "rank 0 of 1 on" in read(tmp_path / MODEL, ModelProfile).source
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((MODEL, COMPRESSOR)), "and of no other one"


def test_a_job_takes_no_folder_of_a_command_that_has_not_started_it(tmp_path: Path) -> None:
    """As when it is started by hand, with HVD_COMPRESS_PROFILE alone, while the command runs another one."""

    def refused(engine: InProcessEngine) -> str:
        with pytest.raises(ConfigError) as raised:
            train(engine, settings(tmp_path), steps=1)
        return str(raised.value)

    with Claim(tmp_path, COMMAND) as command:
        told = run_ranks(2, refused)
        assert all(f"another profile is recorded into the folder {tmp_path}" in words for words in told)
        run_ranks(2, lambda engine: train(engine, settings(tmp_path, command=command.run)) and None)
    files = (read(tmp_path / MODEL, ModelProfile), read(tmp_path / COMPRESSOR, CompressorProfile))
    runs = {file.run for file in (*files, read(tmp_path / SYSTEM, SystemProfile))}
    assert len(runs) == 1
    assert is_of(runs.pop(), command.run)


def test_a_folder_that_was_made_anew_belongs_to_the_run_that_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The files of the other one do not get among its own, nor does what that tells of its progress."""
    place = tmp_path / "profile"

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, REQUEST, settings=settings(place))
        for step in range(STEPS + SKIP):
            if step == 1:
                shutil.rmtree(place)
                place.mkdir()
                (place / PROGRESS).write_text("of the other run")
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        optimizer.retire()

    with caplog.at_level(logging.WARNING, "hvd_compress"):
        run_ranks(1, body)
    assert [(path.name, path.read_text()) for path in place.iterdir()] == [(PROGRESS, "of the other run")]
    assert caplog.text.count(f"there is no profile: the folder {place} was removed while this run recorded") == 1


def test_a_job_that_ends_before_leaves_the_folder_to_others(tmp_path: Path) -> None:
    for _ in range(2):
        run_ranks(1, lambda engine: train(engine, settings(tmp_path), steps=1)[0].retire())


def test_a_folder_that_was_away_for_a_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, away = tmp_path / "profile", tmp_path / "away"

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, REQUEST, settings=settings(folder))
        for step in range(STEPS + SKIP):
            if step in (1, 3):
                folder.rename(away)
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
            if step in (1, 3):
                away.rename(folder)

    with caplog.at_level(logging.WARNING, "hvd_compress"):
        run_ranks(1, body)
    assert read(folder / MODEL, ModelProfile).steps == STEPS
    assert caplog.text.count("cannot write to HVD_COMPRESS_PROFILE") == 1


def plain(ranks: int = 2) -> list[torch.Tensor]:
    return run_ranks(ranks, lambda engine: train(engine, settings(None))[1])[0]


def test_files_that_cannot_be_written_end_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / MODEL).mkdir()
    with caplog.at_level(logging.WARNING, "hvd_compress"):
        found = run_ranks(2, lambda engine: train(engine, settings(tmp_path))[1])
    assert all(torch.equal(a, b) for own in found for a, b in zip(own, plain(), strict=True))
    said = json.loads((tmp_path / PROGRESS).read_text())
    assert said.pop("obstacle").startswith(f"cannot write the profile {tmp_path}: ")
    assert said == {"steps": STEPS + SKIP, "of": STEPS + SKIP}
    assert caplog.text.count("there is no profile: cannot write") == 1


def test_files_of_an_earlier_job_stay_or_go_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_text("{}")
    model, compressor = read(folder / MODEL, ModelProfile), read(folder / COMPRESSOR, CompressorProfile)

    def but_the_last(path: Path, profile: Any) -> None:
        if isinstance(profile, ModelProfile):
            raise PlanError("no room")
        write(path, profile)

    with Claim(tmp_path, RUN) as claim:
        with monkeypatch.context() as patched:
            patched.setattr(job, "write", but_the_last)
            with pytest.raises(PlanError, match="no room"):
                job.write_profile(claim, model, compressor, None)
        assert sorted(path.name for path in tmp_path.glob("*.json")) == sorted((MODEL, COMPRESSOR, SYSTEM))
        assert {path.read_text() for path in tmp_path.glob("*.json")} == {"{}"}
        job.write_profile(claim, model, compressor, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((MODEL, COMPRESSOR))
    assert read(tmp_path / MODEL, ModelProfile) == model.model_copy(update={"run": claim.run})


def test_an_error_that_nobody_expected_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model_profile(*_: object) -> ModelProfile:
        raise ZeroDivisionError("of a clock that stands still")

    monkeypatch.setattr(job, "model_profile", model_profile)
    found = run_ranks(2, lambda engine: train(engine, settings(tmp_path))[1])
    assert all(torch.equal(a, b) for own in found for a, b in zip(own, plain(), strict=True))
    assert "ZeroDivisionError: of a clock" in json.loads((tmp_path / PROGRESS).read_text())["obstacle"]


def test_a_rank_that_cannot_measure_lets_all_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a profile, and with the same words on all of them."""
    own = job.JobProfile._measure_compressor

    def on_rank_1(self: job.JobProfile, rank: int, source: str) -> CompressorProfile | None:
        if rank == 1:
            raise MemoryError("no room for 16,777,216 elements")
        return own(self, rank, source)

    monkeypatch.setattr(job.JobProfile, "_measure_compressor", on_rank_1)
    with caplog.at_level(logging.WARNING, "hvd_compress"):
        found = run_ranks(2, lambda engine: train(engine, settings(tmp_path))[1])
    assert all(torch.equal(a, b) for own in found for a, b in zip(own, plain(), strict=True))
    words = r"there is no profile: rank 1 cannot measure TopK.*: MemoryError: no room for 16,777,216 elements"
    assert len(re.findall(words, caplog.text)) == 2
    assert not (tmp_path / MODEL).exists()


def test_a_collective_that_fails_while_measuring_ends_all_ranks_behind_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step counts on all of them, with its gradients; the next one is the error of a failed exchange."""
    own = job.measure_system

    def on_rank_1(engine: InProcessEngine, *arguments: Any) -> SystemProfile:
        if engine.rank == 1:
            raise ConnectionError("the cable is out")
        return own(engine, *arguments)

    def body(engine: InProcessEngine) -> list[torch.Tensor]:
        optimizer, found = train(engine, settings(tmp_path), steps=STEPS + SKIP)
        assert optimizer._reducer.session.step == STEPS + SKIP
        parameters = {name: p for p, name in optimizer._names.items()}
        backward(parameters, engine.rank, STEPS + SKIP)
        with pytest.raises(CommunicationError, match="nothing is exchanged any more"):
            optimizer.step()
        optimizer.retire()
        return found

    monkeypatch.setattr(job, "measure_system", on_rank_1)
    found = run_ranks(2, body)
    assert all(torch.equal(a, b) for own in found for a, b in zip(own, plain()[: STEPS + SKIP], strict=True))
    assert not (tmp_path / MODEL).exists()
