"""k-means on the heads of a layer, the error curve and the elbow."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.attention.elbow import elbow, error_curve
from hvd_compress.attention.kmeans import k_means, squared_distances


def products(points: torch.Tensor) -> torch.Tensor:
    return points.double() @ points.double().mT


def planted(groups: list[int], spread: float, seed: int) -> torch.Tensor:
    """Points near the centre of their group."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(groups) + 1, 12, generator=generator)
    return centres[groups] + spread * torch.randn(len(groups), 12, generator=generator)


def partition(source: list[int]) -> set[frozenset[int]]:
    return {frozenset(i for i, each in enumerate(source) if each == one) for one in source}


def error_of(points: torch.Tensor, source: list[int]) -> float:
    """By the definition: squared distances to the means of clusters."""
    clusters = [points[list(members)].double() for members in partition(source)]
    return float(sum(((each - each.mean(0)) ** 2).sum() for each in clusters))


@given(st.lists(st.integers(0, 3), min_size=4, max_size=12), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_planted_clusters_are_found(groups: list[int], seed: int) -> None:
    points = planted(groups, 1e-3, seed)
    found = k_means(squared_distances(products(points))[None], len(set(groups)))
    assert partition(found.source[0].tolist()) == partition(groups)
    assert float(found.error) == pytest.approx(error_of(points, groups), abs=1e-9)


@given(st.integers(2, 10), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_holds_of_any_points(heads: int, data: st.DataObject) -> None:
    """No cluster is empty, its representative is the nearest to its mean, and no head is nearer to another mean."""
    k, seed = data.draw(st.integers(1, heads)), data.draw(st.integers(0, 10_000))
    points = torch.rand(heads, 6, generator=torch.Generator().manual_seed(seed)).double()
    found = k_means(squared_distances(products(points))[None], k)
    source = found.source[0].tolist()
    assert len(set(source)) == k
    assert all(source[each] == each for each in source)
    means = {one: points[[i for i, each in enumerate(source) if each == one]].mean(0) for one in set(source)}
    for head, one in enumerate(source):
        distance = {other: float(((points[head] - mean) ** 2).sum()) for other, mean in means.items()}
        assert distance[one] <= min(distance.values()) + 1e-5
        assert float(((points[one] - means[one]) ** 2).sum()) <= distance[one] + 1e-5
    assert float(found.error) == pytest.approx(error_of(points, source), abs=1e-9)


def test_a_batch_is_as_each_alone() -> None:
    batch = torch.stack([planted([0, 1, 2, 0, 1, 2, 2, 2], 0.3, seed) for seed in range(6)])
    together = k_means(squared_distances(products(batch)), 3)
    for row, points in enumerate(batch):
        alone = k_means(squared_distances(products(points))[None], 3)
        assert together.source[row].tolist() == alone.source[0].tolist()


@pytest.mark.parametrize("k", range(1, 7))
def test_equal_heads_fill_as_many_clusters_as_asked_for(k: int) -> None:
    same = k_means(squared_distances(products(torch.ones(6, 4)))[None], k)
    assert len(set(same.source[0].tolist())) == k
    assert float(same.error) == 0


def test_rounding_does_not_choose_a_representative() -> None:
    points = planted([0, 0, 0, 1, 1, 2], 0.0, 3).float()
    for seed in range(5):
        noise = 1e-7 * torch.randn(points.shape, generator=torch.Generator().manual_seed(seed))
        assert k_means(squared_distances(products(points + noise))[None], 3).source.tolist() == [[0, 0, 0, 3, 3, 5]]


@given(st.integers(2, 9), st.integers(0, 1000))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_the_error_falls_to_zero(heads: int, seed: int) -> None:
    points = torch.rand(heads, 5, generator=torch.Generator().manual_seed(seed))
    errors = error_curve(products(points))
    assert len(errors) == heads
    assert errors[0] == pytest.approx(error_of(points, [0] * heads))
    assert errors[-1] == 0
    assert all(before >= after for before, after in itertools.pairwise(errors))


@given(st.lists(st.integers(0, 4), min_size=5, max_size=12), st.integers(0, 1000))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_elbow_of_equal_heads_is_their_number(groups: list[int], seed: int) -> None:
    errors = error_curve(products(planted(groups, 0.0, seed)))
    assert elbow(errors, plateau=0.0) == len(set(groups))


def test_the_elbow_leaves_the_share_that_it_says() -> None:
    errors = (10.0, 4.0, 1.0, 0.5, 0.1, 0.0)
    assert [elbow(errors, plateau) for plateau in (0.0, 0.01, 0.05, 0.1, 0.4, 0.9)] == [6, 5, 4, 3, 2, 2]
    assert elbow((0.0, 0.0, 0.0)) == 1


def test_near_heads_and_an_elbow() -> None:
    groups = [0, 1, 2, 3] * 4
    random.Random(1).shuffle(groups)
    assert elbow(error_curve(products(planted(groups, 0.02, 5)))) == 4
