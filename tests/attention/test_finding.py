"""The offline phase: correlation, errors and clusters by samples."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, find_clusters, remove, statistics
from hvd_compress.attention.elbow import plateau_of_share
from hvd_compress.errors import ConfigError, UsageError
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, logits, plant, sequences

PLANTED = ([0, 0, 2, 2, 0, 0, 6, 6], [0, 0, 2, 2, 4, 4, 2, 2])
SAMPLES = sequences([24, 17, 30, 5], seed=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_planted_heads_are_found(family: str, tmp_path: Path) -> None:
    model = build(family)
    for layer, membership in enumerate(PLANTED):
        plant(model, layer, membership)
    counts = find_clusters(model, SAMPLES)
    assert counts.clusters == tuple(len(set(each)) for each in PLANTED)
    assert [list(layer.membership) for layer in counts.layers] == list(PLANTED)
    assert (counts.samples, counts.tokens, counts.heads) == (4, 76, HEADS)
    for layer, membership in zip(counts.layers, PLANTED, strict=True):
        correlation = np.array(layer.correlation)
        same = np.array(membership)[:, None] == np.array(membership)
        assert np.allclose(correlation[same], 1, atol=1e-5)
        assert (correlation[~same] < 0.99).all()
        assert layer.errors[layer.clusters - 1] == 0
    counts.save(tmp_path / "counts.json")
    assert ClusterCounts.load(tmp_path / "counts.json") == counts


@pytest.mark.parametrize("family", FAMILIES)
def test_correlation_and_error_by_the_model_s_own_scores(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_SCORES", 500)  # a few queries at a time
    model = build(family)
    counts = find_clusters(model, SAMPLES[:2])
    model.set_attn_implementation("eager")
    correlations: list[list[np.ndarray]] = [[], []]
    points: list[list[np.ndarray]] = [[], []]
    for sample in SAMPLES[:2]:
        with torch.no_grad():
            attentions = model(torch.tensor([sample]), output_attentions=True).attentions
        for layer in range(LAYERS):
            seen = np.tril_indices(len(sample))
            scores = attentions[layer][0].numpy()[:, seen[0], seen[1]]
            correlations[layer].append(np.corrcoef(scores))
            points[layer].append(scores)
    for layer in range(LAYERS):
        expected = np.mean(correlations[layer], 0)
        assert np.allclose(counts.layers[layer].correlation, expected, atol=1e-4)
        joined = np.concatenate(points[layer], 1)
        assert counts.layers[layer].errors[0] == pytest.approx(((joined - joined.mean(0)) ** 2).sum(), rel=1e-4)


def test_heads_that_are_alike_for_one_token_correlate_with_none() -> None:
    """The scores of a head that looks at all tokens alike, or of two tokens, say nothing."""
    of = statistics.HeadStatistics(2)
    of.add(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4), 1.0)
    assert of.correlation.tolist() == [[1, 0], [0, 1]]


def test_a_larger_plateau_leaves_fewer_clusters() -> None:
    model = build("gpt2")
    all_heads = find_clusters(model, SAMPLES, plateau=0.0)
    some = find_clusters(model, SAMPLES, plateau=0.4)
    assert all_heads.clusters == (HEADS, HEADS)
    assert max(some.clusters) < HEADS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [0.65, 0.7, 0.8, 0.9, 1.0])
def test_a_share_of_the_cache_has_the_smallest_plateau(family: str, share: float) -> None:
    model = build(family)
    key_heads = getattr(model.config, "num_key_value_heads", HEADS)

    def left(counts: ClusterCounts) -> float:
        return sum(min(k, key_heads) + key_heads for k in counts.clusters) / (2 * LAYERS * key_heads)

    counts = find_clusters(model, SAMPLES, cache_share=share)
    assert counts.plateau is not None
    assert left(counts) <= share
    assert find_clusters(model, SAMPLES, plateau=counts.plateau) == counts
    if counts.plateau > 0:
        assert left(find_clusters(model, SAMPLES, plateau=float(np.nextafter(counts.plateau, 0)))) > share
    if key_heads == HEADS:
        assert counts.cache_share == left(counts)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_request_keeps_more_than_the_share(family: str) -> None:
    model, share = build(family), 0.7
    counts = find_clusters(model, SAMPLES, cache_share=share)
    for static in (False, True):
        apply(model, counts, static=static)
        for sample in sequences([32] * 4, seed=9):
            cache = ClusteredCache(counts, static=static, block_tokens=32)
            logits(model, [sample], cache=cache)
            key_heads = cache.layers[0].key_heads
            full = 2 * LAYERS * key_heads * 32 * (32 // HEADS) * 4
            assert cache.storage_bytes <= share * full
            if key_heads == HEADS:
                assert cache.storage_bytes == round(counts.cache_share * full)
        remove(model)


def test_the_plateau_of_a_share_by_hand() -> None:
    """Ratios 1, 0.5, 0.2, 0 and 1, 0.6, 0.1, 0; 7/12 of a cache of 4 heads and 2 layers is beyond reach."""
    curves = ((10.0, 5.0, 2.0, 0.0), (100.0, 60.0, 10.0, 0.0))
    shares = {16: 0.0, 15: 0.1, 14: 0.2, 13: 0.5, 12: 0.6, 11: 1.0, 10: 1.0}
    for kept, plateau in shares.items():
        assert plateau_of_share(curves, 4, kept / 16) == plateau
    assert plateau_of_share(curves, 2, 0.99) == 1.0  # two heads of keys: less than two clusters
    assert plateau_of_share(((0.0, 0.0),), 2, 0.75) == 0.0
    with pytest.raises(ConfigError, match=r"cache_share is 0\.6, and one cluster in each layer leaves 0\.625"):
        plateau_of_share(curves, 4, 0.6)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cache_share": 0.5}, "cache_share = 0.5 is not a number above 0.5, 1 at most: values always stay"),
        ({"cache_share": 1.1}, "cache_share = 1.1"),
        ({"cache_share": float("nan")}, "cache_share = nan"),
        ({"cache_share": 0.55}, "one cluster in each layer leaves 0.5625 of the cache"),
        ({"cache_share": 0.8, "plateau": 0.05}, "give one of them"),
    ],
)
def test_shares_that_are_none(asked: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        find_clusters(build("gpt2"), SAMPLES, **asked)


def test_the_model_is_left_as_it_was() -> None:
    model = build("llama")
    before = model(torch.tensor([SAMPLES[0]])).logits
    find_clusters(model, SAMPLES)
    assert model.config._attn_implementation == "sdpa"
    assert not model.model._forward_pre_hooks
    assert torch.equal(model(torch.tensor([SAMPLES[0]])).logits, before)
    with pytest.raises(ConfigError):
        find_clusters(model, [[1, 2], [3, 10_000]])
    assert model.config._attn_implementation == "sdpa"
    assert not model.model._forward_pre_hooks


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "one sample at least"),
        ([[1, 2], [3]], "sample 1 is not a list of two token ids"),
        ([[0.5, 0.5]], "sample 0"),
        (["text"], "sample 0"),
        ([torch.ones(2, 2, dtype=torch.int64)], "sample 0"),
        ([[1, -1]], "a token that is not among the 61"),
        ([[1] * 161], "161 tokens, and GPT2LMHeadModel has 160 positions"),
    ],
)
def test_samples_that_are_none(samples: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_clusters(build("gpt2"), samples)


def test_when_not_to_ask() -> None:
    model = build("gpt2")
    with pytest.raises(
        ConfigError, match=r"plateau = 1\.5 is not a number, 0 to 1: a share of the error of one cluster"
    ):
        find_clusters(model, SAMPLES, plateau=1.5)
    apply(model, ClusterCounts.of([range(HEADS)] * LAYERS))
    with pytest.raises(UsageError, match=r"remove\(model\) before"):
        find_clusters(model, SAMPLES)
    remove(model)
    with pytest.raises(UsageError, match="training mode"):
        find_clusters(model.train(), SAMPLES)
