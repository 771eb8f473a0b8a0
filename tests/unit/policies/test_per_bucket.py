"""A function says how each bucket travels: the same on every rank, or an error on every rank."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.policies.per_bucket import PerBucketPolicy
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.harness import SHAPES, backward, flat_gradient, flat_residual, on_engine

LARGE = 60
STEPS = 3


def by_size(layout: Layout) -> Request:
    return Compression.int8() if layout.numel >= LARGE else Compression.dense()


def train(request: Request) -> list[tuple[torch.Tensor, torch.Tensor, dict[str, str]]]:
    """Return the gradients of all steps, the residuals, and how each parameter travels, of each rank."""

    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor, dict[str, str]]:
        parameters, optimizer = on_engine(engine, request)
        seen = []
        for step in range(STEPS):
            backward(parameters, engine.rank, step)
            optimizer.step()
            seen.append(flat_gradient(parameters).clone())
            optimizer.zero_grad()
        travels = {
            name: type(each.compressor).__name__ for names, each in of(optimizer).decisions.items() for name in names
        }
        return torch.cat(seen), flat_residual(optimizer, parameters), travels

    return run_ranks(2, body)


def test_it_does_what_a_plan_of_the_same_does(tmp_path: Path) -> None:
    large = [name for name, shape in SHAPES.items() if torch.Size(shape).numel() >= LARGE]
    assert 0 < len(large) < len(SHAPES)
    int8 = {"name": "blocks", "bits": 8}
    patterns = [{"pattern": name, "compressor": int8} for name in large]
    (tmp_path / "plan.json").write_text(json.dumps({"version": 1, "patterns": patterns, "default": {}}))
    for own, planned in zip(
        train(Compression.per_bucket(by_size)), train(Compression.plan(tmp_path / "plan.json")), strict=True
    ):
        assert torch.equal(own[0], planned[0])
        assert torch.equal(own[1], planned[1])
        assert own[2] == {name: "BlockQuantizer" if name in large else "Cast" for name in SHAPES}


def test_it_is_asked_of_a_bucket_whose_parameters_differ() -> None:
    asked: list[tuple[str, ...]] = []

    def by_name(layout: Layout) -> Request:
        if any(name.startswith("b") for name in layout.names):
            return Compression.dense()
        return Compression.int4()

    def body(engine: InProcessEngine) -> list[tuple[str, str]]:
        def choose(layout: Layout) -> Request:
            asked.append(layout.names)
            return by_name(layout)

        policy = PerBucketPolicy(choose)
        layouts = [Layout((name,), ((64,),)) for name in ("a", "b", "c", "d")]
        policy.prepare(engine, layouts)
        buckets = [Layout(("a", "b"), ((64,), (64,))), Layout(("c", "d"), ((64,), (64,)))]
        found = policy.setup(0, buckets, lambda call, label, measuring_s=0.0: lambda: call(engine))
        return [(type(each.compressor).__name__, str(policy.parts(["a", "b", "c", "d"])[0].names)) for each in found]

    for found in run_ranks(2, body):
        assert found == [("Cast", "('a', 'c', 'd')"), ("BlockQuantizer", "('a', 'c', 'd')")]
    assert sorted(asked) == sorted([("a",), ("b",), ("c",), ("d",), ("a", "b")] * 2)


def errors(choose: Callable[[Layout, int], Any]) -> list[str]:
    """Return what each rank says in its first step."""

    def body(engine: InProcessEngine) -> str:
        request = Compression.per_bucket(lambda layout: choose(layout, engine.rank))
        parameters, optimizer = on_engine(engine, request)
        backward(parameters, engine.rank, 0)
        with pytest.raises(ConfigError) as caught:
            optimizer.step()
        return str(caught.value)

    return run_ranks(2, body)


def test_ranks_that_choose_otherwise_are_an_error_on_both() -> None:
    found = errors(lambda layout, rank: Compression.int8() if rank else Compression.int4())
    assert all("and something else on rank" in each for each in found), found


def test_a_function_that_fails_on_one_rank_is_an_error_on_both() -> None:
    found = errors(lambda layout, rank: Compression.int8() if rank else layout.nothing)
    assert "AttributeError" in found[0]
    assert "has failed on rank 0" in found[1]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returns None"),
        (Compression.auto(), "whose every step is alike"),
        (Compression.demo(), "without a momentum"),
        *((each, "without a momentum") for each in brought("WITH_MOMENTUM")),
        (Compression.topk(0.1).by(collective="artopk"), "whose every step is alike"),
        (Compression.int8().with_feedback(), "whose every step is alike"),
        (Compression.int8().by(engine="torch"), r"say \.by\(engine=\.\.\.\) of per_bucket"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_compression_of_a_bucket(returned: Any, words: str) -> None:
    assert all(re.search(words, each) for each in errors(lambda layout, rank: returned))


def test_what_cannot_be_called() -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        Compression.per_bucket(Compression.int8())  # type: ignore[arg-type]
