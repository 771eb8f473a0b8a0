"""What every compression takes is said by `.by()`, of the core's functions and of guests'."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.compression import Compression
from hvd_compress.compression.named import request_of
from hvd_compress.compressors import TopK
from hvd_compress.errors import ConfigError, MovedArgumentError
from hvd_compress.optim import DeMo, OneBitAdam
from hvd_compress.policies.per_bucket import PerBucket
from hvd_compress.request.request import DEVICES, WORDS, Request

FUNCTIONS = sorted(name for name in dir(Compression) if not name.startswith("_"))
VALUES = {"collective": "parameter-server", "algorithm": "bruck", "engine": "torch", "device": "cpu"}
SPELLED = {word: f'{word}="{value}"' for word, value in VALUES.items()}
EARLIER = {**{word: word for word in WORDS}, "scheme": "collective"}
"""Words that were arguments of functions, with those of .by()."""


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
        for collective in collectives.requests_for(request.compressor):
            assert request.by(collective=collective).collective == collective
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


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("value", [3, 1.5, b"star", ["ring"]])
def test_what_is_no_word_is_refused(word: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"unknown {word}"):
        Compression.topk(0.1).by(**{word: value})


def test_auto_is_a_word_too_where_it_would_change_something() -> None:
    """What a policy has been given by half of its levels stays."""
    levels = Compression.topk(0.1).by(collective="star"), Compression.topk(0.01).by(collective="star")
    request = replace(levels[0], policy=PerBucket(lambda layout: levels[1]))
    assert request.by(collective="star") == request
    with pytest.raises(ConfigError, match="collective='auto' is not for PerBucket"):
        request.by(collective="auto")


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
    with pytest.raises(ConfigError, match="unknown collective 'star'"):
        Compression.int8().by(collective="star")


def test_feedback_and_policy_stay() -> None:
    request = Compression.momentum(0.5, 3).with_feedback(0.25).by(collective="allgather", device="cpu")
    assert (request.policy, request.feedback) == (Compression.momentum(0.5, 3).policy, request.feedback)
    assert request.feedback.initial == 0.25
    assert request.by(engine="mpi").with_feedback(0.25) == request.by(engine="mpi")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_that_was_one_of_each_says_what_to_write(name: str, needed: dict[str, Any]) -> None:
    function = getattr(Compression, name)
    own = inspect.signature(function).parameters
    assert not EARLIER.keys() & own.keys()
    given = {word: needed[word] for word, each in own.items() if each.default is inspect.Parameter.empty}
    others = "..." if given else ""
    for word, said in EARLIER.items():
        with pytest.raises(MovedArgumentError) as caught:
            function(**given, **{word: VALUES[said]})
        assert f"has no argument {word}: " in str(caught.value)
        assert str(caught.value).endswith(f"write Compression.{name}({others}).by({SPELLED[said]})")
    with pytest.raises(TypeError, match="has no argument device and scheme: "):
        function(**given, device="cpu", scheme="star")


@pytest.mark.parametrize(
    ("name", "values", "written"),
    [
        ("topk", (0.1, "star"), '(...).by(collective="star")'),
        ("topk", (0.1, "auto", "ring"), '(...).by(collective="auto", algorithm="ring")'),
        ("of", (TopK(0.1), "allgather", "bruck"), '(...).by(collective="allgather", algorithm="bruck")'),
        ("dense", ("tree",), '().by(algorithm="tree")'),
    ],
)
def test_so_does_one_that_was_positional(name: str, values: tuple[object, ...], written: str) -> None:
    with pytest.raises(MovedArgumentError) as caught:
        getattr(Compression, name)(*values)
    assert str(caught.value).endswith(f"write Compression.{name}{written}")


def test_so_do_optimizers() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    options = {"engine": "torch", "scheme": "allgather"}
    for optimizer in (DeMo(parameters), OneBitAdam(parameters, warmup_steps=3)):
        with pytest.raises(MovedArgumentError) as caught:
            optimizer.compression(**options)  # type: ignore[attr-defined]
        written = 'optimizer.compression().by(collective="allgather", engine="torch")'
        assert str(caught.value).endswith(f"write {written}")


def test_other_wrong_arguments_are_as_python_says() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'blok'") as caught:
        Compression.int4(blok=64)  # type: ignore[call-arg]
    assert not isinstance(caught.value, MovedArgumentError)
    with pytest.raises(TypeError, match="takes from 0 to 2 positional arguments but 3 were given"):
        Compression.int4(64, False, 3)  # type: ignore[misc]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_still_what_they_seem(name: str) -> None:
    function = getattr(Compression, name)
    assert inspect.isfunction(function)
    assert (function.__name__, inspect.signature(function).return_annotation) == (name, "Request")
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_warning_names_the_line_of_the_program() -> None:
    with pytest.warns(UserWarning, match=r"Compression\.topk\(ratio=1\) sends every element") as warned:
        Compression.topk(1)
    assert warned[0].filename == __file__
