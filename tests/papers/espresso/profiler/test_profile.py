"""A profile of a plain training loop, without a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hvd_compress.profiler
from hvd_compress.compressors import EFSign
from hvd_compress.errors import ConfigError, PlanError, UnsupportedError, UsageError
from hvd_compress.papers.espresso.profiler.folder import RUN, Claim
from hvd_compress.profiler import Profile
from hvd_compress.profiler.profiles import CompressorProfile, ModelProfile, read
from tests.played_clock import Chain, PlayedClock

TAKEN = [4.0, 2.0, 1.0]


class Loop:
    """A training on a clock of its own."""

    def __init__(self, steps: int = 4, skip: int = 2) -> None:
        self.clock = PlayedClock()
        self.chain = Chain(self.clock)
        self.optimizer = torch.optim.SGD(list(self.chain.parameters.values()), lr=0.1)
        self.profile = Profile(
            self.chain.parameters.items(), self.optimizer, steps=steps, skip=skip, make_clock=lambda _: self.clock
        )

    def train(self, steps: int, factor: float = 1.0) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.chain.loss([factor * seconds for seconds in TAKEN]).backward()
            self.optimizer.step()


def test_steps_are_recorded_behind_those_that_are_skipped() -> None:
    loop = Loop()
    with loop.profile as profile:
        loop.train(2, factor=100.0)
        assert not profile.complete
        loop.train(4)
        assert profile.complete
        loop.train(2, factor=100.0)
    model = profile.model("chain")
    assert [(tensor.name, tensor.backward_us) for tensor in model.tensors] == [
        ("2", 1e6),
        ("1", 2e6),
        ("0", 4e6),
        ("unused", 0.0),
    ]
    assert (model.model, model.steps, model.forward_us) == ("chain", 4, 3e6)


def test_fewer_steps_than_asked_for_are_a_profile_too() -> None:
    loop = Loop(steps=100)
    with loop.profile as profile:
        loop.train(2, factor=100.0)
        loop.train(3)
    assert not profile.complete
    assert profile.model().steps == 3
    assert profile.model().tensors[0].backward_us == 1e6


@pytest.mark.parametrize("steps", [0, 2])
def test_skipped_steps_alone_are_none(steps: int, tmp_path: Path) -> None:
    loop = Loop()
    with loop.profile as profile:
        loop.train(steps)
    with pytest.raises(UsageError, match="0 steps were recorded"):
        profile.write(tmp_path)


def test_both_files_are_written(tmp_path: Path) -> None:
    loop = Loop()
    with loop.profile as profile:
        loop.train(6)
    profile.write(tmp_path / "a" / "b", "efsign", budget_s=0.0)
    model = read(tmp_path / "a" / "b" / "model.json", ModelProfile)
    assert model == profile.model().model_copy(update={"run": model.run})
    assert model.run == read(tmp_path / "a" / "b" / "compressor.json", CompressorProfile).run != ""
    assert "one process" in model.source
    assert read(tmp_path / "a" / "b" / "compressor.json", CompressorProfile).compressor["name"] == "efsign"
    profile.write(tmp_path, EFSign(), budget_s=0.0)
    assert (tmp_path / "compressor.json").exists()


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    loop = Loop()
    with loop.profile as profile:
        loop.train(6)
    with pytest.raises(ConfigError, match="unknown compressor 'gzip'"):
        profile.write(tmp_path, "gzip")
    with pytest.raises(UnsupportedError, match="profile another"):
        profile.write(tmp_path, "powersgd:rank=2")
    with (
        Claim(tmp_path / "taken", RUN),
        pytest.raises(ConfigError, match=r"another profile is recorded into the folder .*taken"),
    ):
        profile.write(tmp_path / "taken", "efsign", budget_s=0.0)
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot make the folder"):
        profile.write(tmp_path / "file", "efsign", budget_s=0.0)
    for bad in ({"steps": 0}, {"skip": -1}, {"steps": True}, {"steps": 2.5}, {"steps": 10**19}, {"skip": 10**400}):
        with pytest.raises(ConfigError, match="is not a whole number"):
            Profile(loop.chain.parameters.items(), loop.optimizer, **bad)
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    with pytest.raises(ConfigError, match="no parameter is trained"):
        Profile([("frozen", frozen)], loop.optimizer)


def test_parameters_on_several_devices_are_refused() -> None:
    here, there = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(UnsupportedError, match="lie on cpu, meta"):
        Profile([("here", here), ("there", there)], torch.optim.SGD([here], lr=0.1))


def test_an_error_in_the_loop_leaves_nothing_behind() -> None:
    loop, own = Loop(), torch.autograd.backward
    with pytest.raises(KeyError), loop.profile:
        raise KeyError
    assert torch.autograd.backward is own
    loop.train(8)
    assert not loop.profile.complete


def test_the_real_clock(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hvd_compress.profiler.Profile(model.named_parameters(), optimizer, steps=5, skip=1) as profile:
        while not profile.complete:
            optimizer.zero_grad()
            model(torch.ones(4, 20)).sum().backward()
            optimizer.step()
    found = profile.model()
    assert [tensor.name.partition(".")[0] for tensor in found.tensors] == ["2", "2", "0", "0"]
    assert found.forward_us > 0
    assert sum(tensor.backward_us for tensor in found.tensors) > 0
