"""The profile of a job, whose ranks are threads of this process."""

from __future__ import annotations

import gc
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import Cast, EFSign, PowerSGD
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends import recorded
from hvd_compress.frontends.recorded import recorded_once
from hvd_compress.profiler.profiles import (
    COMPRESSOR,
    MODEL,
    PROGRESS,
    SYSTEM,
    CompressorProfile,
    ModelProfile,
    SystemProfile,
    read,
)
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import SHAPES, alone, backward, on_engine
from tests.logged import events_of
from tests.papers.espresso.profiler.profiled import REQUEST, SKIP, STEPS, settings, train


def test_the_files_are_complete(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted((MODEL, COMPRESSOR, SYSTEM))
    model = read(folder / MODEL, ModelProfile)
    assert {tensor.name: tensor.shape for tensor in model.tensors} == SHAPES
    assert {tensor.dtype for tensor in model.tensors} == {"float32"}
    assert model.steps == STEPS
    assert all(tensor.backward_us_sd is not None for tensor in model.tensors)
    assert sum(tensor.backward_us for tensor in model.tensors) > 0
    assert model.forward_us > 0
    compressor = read(folder / COMPRESSOR, CompressorProfile)
    assert compressor.compressor["name"] == "topk"
    assert compressor.compressor["ratio"] == 0.05
    assert set(compressor.devices) == {"training"}
    system = read(folder / SYSTEM, SystemProfile)
    assert (system.hosts, system.ranks_per_host) == (2, 2)
    assert all("rank 0 of 4 on 2 host(s)" in each.source for each in (model, compressor, system))


@pytest.mark.parametrize("request_", [REQUEST, Request(EFSign()), Request(Cast())], ids=str)
def test_what_is_trained_is_the_same_to_the_bit(request_: Request, tmp_path: Path) -> None:
    plain = run_ranks(2, lambda engine: train(engine, settings(None), request_)[1])
    profiled = run_ranks(2, lambda engine: train(engine, settings(tmp_path), request_)[1])
    for before, after in zip(plain[0], profiled[0], strict=True):
        assert torch.equal(before, after)


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, REQUEST, settings=settings(tmp_path), passes=2)
        for step in range(2 * (STEPS + SKIP)):
            assert not (tmp_path / MODEL).exists()
            backward(parameters, engine.rank, step)
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()

    run_ranks(1, body)
    assert read(tmp_path / MODEL, ModelProfile).steps == STEPS


def test_nothing_is_chosen_while_training(tmp_path: Path) -> None:
    given = replace(settings(tmp_path), adapt=True)
    assert run_ranks(2, lambda engine: of(train(engine, given, steps=2)[0]).controller) == [None, None]


def test_buckets_are_held_back_until_the_profile_is_complete(tmp_path: Path) -> None:
    """So that no exchange takes cores from the backward pass that is measured."""

    def body(engine: InProcessEngine) -> list[bool]:
        parameters, optimizer = on_engine(engine, REQUEST, settings=settings(tmp_path))
        beside = []
        for step in range(STEPS + SKIP + 2):
            backward(parameters, engine.rank, step)
            beside.append(any(optimizer._reducer.session.buckets.is_launched(n) for n in range(3)) if step else False)
            optimizer.step()
            optimizer.zero_grad()
        return beside

    held = STEPS + SKIP
    assert run_ranks(2, body) == [[False] * held + [True, True]] * 2


def test_progress_is_told_until_then(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        optimizer, _ = train(engine, settings(tmp_path), steps=SKIP + 1)
        if engine.rank == 0:
            assert json.loads((tmp_path / PROGRESS).read_text()) == {"steps": SKIP + 1, "of": SKIP + STEPS}
        assert optimizer._reducer.session.services.hold_back

    run_ranks(2, body)
    assert not (tmp_path / MODEL).exists()


def test_one_rank_has_no_system(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hvd_compress"):
        run_ranks(1, lambda engine: train(engine, settings(tmp_path)) and None)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((MODEL, COMPRESSOR))
    assert "the profile is complete, and training goes on" in caplog.text
    assert "one rank has no network" in caplog.text


def test_another_compressor_can_be_named(tmp_path: Path) -> None:
    run_ranks(1, lambda engine: train(engine, settings(tmp_path, compressor="efsign"), Request(Cast())) and None)
    assert read(tmp_path / COMPRESSOR, CompressorProfile).compressor["name"] == "efsign"


def test_where_nothing_is_compressed_topk_is_measured(tmp_path: Path) -> None:
    run_ranks(1, lambda engine: train(engine, settings(tmp_path), Request(Cast())) and None)
    compressor = read(tmp_path / COMPRESSOR, CompressorProfile).compressor
    assert (compressor["name"], compressor["ratio"]) == ("topk", 0.01)


def test_a_compressor_without_payloads_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="profile another compressor"):
        run_ranks(2, lambda engine: on_engine(engine, Request(PowerSGD(2)), settings=settings(tmp_path)) and None)
    with pytest.raises(ConfigError, match="unknown compressor 'gzip'"):
        run_ranks(2, lambda engine: on_engine(engine, REQUEST, settings=settings(tmp_path, compressor="gzip")) and None)


@pytest.mark.parametrize("other", [None, {"compressor": "efsign"}])
def test_a_rank_that_profiles_otherwise_hangs_nobody(other: dict[str, str] | None, tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> str:
        own = settings(tmp_path) if engine.rank == 0 else settings(tmp_path if other else None, **(other or {}))
        with pytest.raises(ConfigError) as raised:
            train(engine, own, steps=1)
        return str(raised.value)

    for said in run_ranks(3, body):
        differing = "TopK.* on rank 0 and .*EFSign.* on ranks 1, 2" if other else "on rank 0 and not set on ranks 1, 2"
        assert re.search(rf"HVD_COMPRESS_PROFILE is a profile of 2 \+ 3 steps with .*{differing}", said), said


def test_uneven_hosts_are_refused_in_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="as many ranks on each"):
        run_ranks(3, lambda engine: train(engine, settings(tmp_path)), hosts=(0, 0, 1))


def test_one_optimizer_of_a_process_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one; another where that one ends before."""
    gc.collect()  # what an earlier test has left would end its own profile in the middle
    monkeypatch.setattr(recorded, "_taken", False)
    given = settings(tmp_path)

    def yielded(asked: Settings) -> Settings:
        with recorded_once(asked) as found:
            return found

    assert yielded(settings(None)).recordings == ()
    with recorded_once(given, of_all=False) as found:
        assert found.recordings == ()
    assert yielded(given) == given
    assert yielded(given).recordings == ()

    def body(engine: InProcessEngine) -> None:
        optimizer, _ = train(engine, given, steps=1)
        optimizer.retire()

    run_ranks(1, body)
    assert yielded(given) == given
    run_ranks(1, lambda engine: train(engine, given)[0].retire())
    assert yielded(given).recordings == (), "it is complete"


def test_what_could_not_be_made_leaves_the_profile_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_taken", False)
    given = settings(tmp_path)
    with pytest.raises(UnsupportedError), recorded_once(given) as found:
        run_ranks(1, lambda engine: on_engine(engine, Request(PowerSGD(2)), settings=found) and None)
    with recorded_once(given) as found:
        assert found == given
    with pytest.raises(UnsupportedError), recorded_once(given):
        on_engine(alone(), Request(PowerSGD(2)), settings=given)
    with recorded_once(given) as found:
        assert found.recordings == (), "the one that was made has it, and not the one that failed"


def test_nothing_is_watched_without_a_profile(tmp_path: Path) -> None:
    own = torch.autograd.backward

    def body(engine: InProcessEngine) -> None:
        optimizer, _ = train(engine, settings(None), steps=2)
        assert list(optimizer._reducer.session.services.recorders) == []
        assert torch.autograd.backward is own

    run_ranks(1, body)


def test_a_log_is_written_of_what_a_profiled_training_does(tmp_path: Path) -> None:
    """With a profile nothing is chosen while training."""
    given = replace(settings(tmp_path / "profile"), adapt=True, log=tmp_path / "log.jsonl")
    run_ranks(2, lambda engine: train(engine, given) and None)
    assert {event.kind for event in events_of(tmp_path / "log.jsonl")} == {"choice", "window", "metrics"}
