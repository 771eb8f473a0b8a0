"""Cluster counts as a file, and against a model."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.attention import ClusterCounts
from hvd_compress.errors import ConfigError, PlanError


@st.composite
def memberships(draw: st.DrawFn) -> list[list[int]]:
    heads, layers = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    found = []
    for _ in range(layers):
        groups = draw(st.lists(st.integers(0, heads - 1), min_size=heads, max_size=heads))
        found.append([groups.index(group) for group in groups])
    return found


@given(memberships())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, layers: list[list[int]]) -> None:
    path = tmp_path_factory.mktemp("counts") / "counts.json"
    counts = ClusterCounts.of(layers)
    counts.save(path)
    assert ClusterCounts.load(path) == counts
    assert counts.clusters == tuple(len(set(layer)) for layer in layers)


def test_the_share_of_the_cache_that_stays() -> None:
    assert ClusterCounts.of([[0, 0, 0, 0], [0, 1, 2, 3]]).cache_share == pytest.approx((1 + 4 + 4 + 4) / 16)


def said(**changes: Any) -> dict[str, Any]:
    layer = {"clusters": 2, "membership": [0, 1, 1]}
    return {"schema": "hvd_compress/cluster-counts", "version": 1, "heads": 3, "layers": [layer]} | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "hvd_compress/plan"}, "schema"),
        ({"version": 2}, "version"),
        ({"heads": 4}, "layer 0 has 3 heads, and heads is 4"),
        ({"layers": []}, "layers"),
        ({"layers": [{"clusters": 3, "membership": [0, 1, 1]}]}, "layers.0: membership has 2 representatives"),
        ({"layers": [{"clusters": 2, "membership": [1, 2, 2]}]}, "layers.0: membership must name"),
        ({"layers": [{"clusters": 1, "membership": [3, 3, 3]}]}, "layers.0: membership must name"),
        ({"layers": [{"clusters": 2, "membership": [0, 1, 1], "errors": [1.0]}]}, "errors has 1 numbers for 3 heads"),
        ({"layers": [{"clusters": 2, "membership": [0, 1, 1], "correlation": [[1.0]]}]}, "correlation is not 3 x 3"),
        ({"layers": [{"clusters": "2", "membership": [0, 1, 1]}]}, "layers.0.clusters"),
        ({"plateau": 1.01}, "plateau"),
        ({"extra": 1}, "extra: unknown field"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(said(**changes)))
    with pytest.raises(PlanError, match="is no file of cluster counts") as error:
        ClusterCounts.load(path)
    assert words in str(error.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the file of cluster counts"):
        ClusterCounts.load(tmp_path / "none.json")


@pytest.mark.parametrize("layers", [[[1, 0]], [[0, 0], [0]], [], [[]], [[0, 5]]])
def test_what_is_no_membership(layers: list[list[int]]) -> None:
    with pytest.raises(ConfigError, match="no clusters of heads"):
        ClusterCounts.of(layers)


def test_counts_of_another_model() -> None:
    counts = ClusterCounts.of([[0, 0], [0, 1]])
    counts.check(2, 2, "this")
    for layers, heads in ((1, 2), (2, 4)):
        with pytest.raises(PlanError, match=f"2 layers with 2 heads, and that has {layers} layers with {heads} heads"):
            counts.check(layers, heads, "that")
