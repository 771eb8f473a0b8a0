"""The offline phase: correlation, errors and clusters by samples."""

from __future__ import annotations

import tests.unit.attention.supported  # noqa: F401

# isort: split

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress.attention import ClusterCounts, apply, find_clusters, remove, statistics
from hvd_compress.errors import ConfigError, UsageError
from tests.unit.attention.models import FAMILIES, HEADS, LAYERS, build, plant, sequences

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
    with pytest.raises(ConfigError, match="plateau is 1"):
        find_clusters(model, SAMPLES, plateau=1)
    apply(model, ClusterCounts.of([range(HEADS)] * LAYERS))
    with pytest.raises(UsageError, match=r"remove\(model\) before"):
        find_clusters(model, SAMPLES)
    remove(model)
    with pytest.raises(UsageError, match="training mode"):
        find_clusters(model.train(), SAMPLES)
