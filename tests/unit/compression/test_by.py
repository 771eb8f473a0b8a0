"""What every compression takes is said by `.by()`, of the core's functions and of guests'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvd_compress import schemes
from hvd_compress.compression import Compression
from hvd_compress.compression.named import request_of
from hvd_compress.compressors import TopK
from hvd_compress.errors import ConfigError
from hvd_compress.request.request import DEVICES, WORDS, Request

FUNCTIONS = sorted(name for name in dir(Compression) if not name.startswith("_"))
VALUES = {"collective": "parameter-server", "algorithm": "bruck", "engine": "torch", "device": "cpu"}


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments without a default."""
    plan: Path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.write_text('{"version": 1, "default": {"compressor": {"name": "efsign"}}}')
    levels = {"low": Compression.topk(0.1), "high": Compression.topk(0.01)}
    return {"tau": 1.0, "path": plan, "choose": lambda _: Compression.int4(), "compressor": TopK(0.1), **levels}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_takes_what_its_policy_leaves_to_it(name: str, needed: dict[str, Any]) -> None:
    request = request_of(name, needed)
    takes = WORDS if request.policy is None else request.policy.takes
    assert "engine" in takes
    for word in ("engine", "device"):
        if word in takes:
            assert getattr(request.by(**{word: VALUES[word]}), word) == VALUES[word]
    for word in set(WORDS) - set(takes):
        with pytest.raises(
            ConfigError, match=rf"{word}='.*' is not for {type(request.policy).__name__}, .*by\(\) takes "
        ):
            request.by(**{word: VALUES[word]})
        assert request.by(**{word: "auto"}) == request


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_goes_by_every_collective_that_carries_it(name: str, needed: dict[str, Any]) -> None:
    request = request_of(name, needed)
    if request.policy is None or "collective" in request.policy.takes:
        for collective in schemes.requests_for(request.compressor):
            assert request.by(collective=collective).scheme == collective
        with pytest.raises(ConfigError, match=r"unknown collective 'alltoal'; known here are auto, .*hierarchical"):
            request.by(collective="alltoal")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_words_are_refused_by_each(name: str, needed: dict[str, Any]) -> None:
    request = request_of(name, needed)
    with pytest.raises(ConfigError, match="unknown engine 'nccl'; known here are auto, mpi, horovod, torch"):
        request.by(engine="nccl")
    if request.policy is None or "device" in request.policy.takes:
        with pytest.raises(ConfigError, match=f"unknown device 'gpu'; known here are {', '.join(DEVICES)}"):
            request.by(device="gpu")


def test_what_is_said_later_is_added() -> None:
    first = Compression.topk(0.1)
    found = first.by(collective="star", engine="mpi").by(algorithm="ring").by(engine="torch", device="cpu")
    assert found == Request(TopK(0.1), "star", "ring", "torch", "cpu")
    assert found.by() == found
    assert found.by(algorithm="auto", device="auto") == Request(TopK(0.1), "star", engine="torch")
    assert first == Request(TopK(0.1))


def test_all_is_checked_together() -> None:
    """An algorithm is one of the collective that is named, whichever of them was said first."""
    assert Compression.int4(block=128).by(collective="allgather", algorithm="bruck").algorithm == "bruck"
    assert Compression.dense().by(algorithm="tree").algorithm == "tree"
    with pytest.raises(ConfigError, match="unknown algorithm 'bruck'"):
        Compression.topk(0.1).by(collective="star", algorithm="bruck")
    with pytest.raises(ConfigError, match="unknown algorithm 'tree'"):
        Compression.topk(0.1).by(algorithm="tree").by(collective="allgather")
    with pytest.raises(ConfigError, match="unknown algorithm 'ring'"):
        Compression.dense().by(collective="hierarchical", algorithm="ring")
    with pytest.raises(ConfigError, match="names an allreduce, and what cannot be summed"):
        Compression.efsign().by(algorithm="ring")
    with pytest.raises(ConfigError, match="unknown collective 'hitopk'"):
        Compression.int8().by(collective="hitopk")


def test_feedback_and_policy_stay() -> None:
    request = Compression.momentum(0.5, 3).with_feedback(0.25).by(collective="allgather", device="cpu")
    assert (request.policy, request.feedback) == (Compression.momentum(0.5, 3).policy, request.feedback)
    assert request.feedback.initial == 0.25
    assert request.by(engine="mpi").with_feedback(0.25) == request.by(engine="mpi")
