"""What clustered attention computes: exact where it must be, and by the definition elsewhere."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, find_clusters, remove
from hvd_compress.attention.transformers_api import CACHE
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, logits, padded, plant, reference, sequences

ONE_EACH = ClusterCounts.of([range(HEADS)] * LAYERS)
SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
"""Of any model: clusters of sizes 1 to 4. Without `static` only their numbers matter."""
PLANTED = ([0, 0, 2, 2, 0, 0, 6, 6], [0, 0, 2, 2, 4, 4, 2, 2])
LENGTHS = (9, 1, 14, 5, 4, 30)


def close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(found, expected, strict=True))


@pytest.fixture(params=FAMILIES, scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    """Not changed by a test."""
    return build(request.param)


@pytest.fixture(params=FAMILIES)
def applied(request: pytest.FixtureRequest) -> Any:
    model = build(request.param)
    apply(model, SOME)
    return model


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cuts", [(), range(1, 30), (16,), (25, 28)])
def test_with_one_head_a_cluster_logits_are_the_model_s_own(model: Any, cuts: tuple[int, ...], static: bool) -> None:
    rows = sequences(LENGTHS)
    own = logits(model, rows, cuts)
    apply(model, ONE_EACH, static=static)
    found = logits(model, rows, cuts)
    remove(model)
    assert close(found, own, 1e-5)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cuts", [(), (26, 27, 28, 29)])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_heads_are_found_and_change_nothing(family: str, cuts: tuple[int, ...], static: bool) -> None:
    model = build(family)
    for layer, membership in enumerate(PLANTED):
        plant(model, layer, membership)
    counts = find_clusters(model, sequences([24, 17], seed=3))
    assert counts.clusters == tuple(len(set(each)) for each in PLANTED)
    rows = sequences(LENGTHS)
    own = logits(model, rows)
    apply(model, counts, static=static)
    cache = ClusteredCache(counts, static=static)
    assert close(logits(model, rows, cuts, cache), own, 1e-4)
    for layer, membership in zip(cache.layers, PLANTED, strict=True):
        assert layer.source.tolist()[5] == membership


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 40])
def test_logits_are_those_of_the_definition(model: Any, length: int, static: bool) -> None:
    """The representatives' scores for all their heads from the sixth query on, over all tokens; values of each head."""
    (row,) = sequences([length], seed=length)
    apply(model, SOME, static=static)
    cache = ClusteredCache(SOME, static=static)
    (found,) = logits(model, [row], cache=cache)
    remove(model)
    if static:
        sources = [layer.membership for layer in SOME.layers]
    else:
        sources = [layer.source[0].tolist() for layer in cache.layers]
    with torch.no_grad(), reference(model, sources):
        expected = model(torch.tensor([row])).logits[0]
    assert torch.allclose(found, expected, rtol=0, atol=2e-5)
    if length > 5:
        own = logits(model, [row])[0]
        assert torch.allclose(found[:5], own[:5], rtol=0, atol=1e-5)
        assert (found[5:] - own[5:]).abs().max() > 1e-2  # else this test would show nothing


def test_clusters_follow_from_the_first_five_tokens_alone(applied: Any) -> None:
    """Of the sequence itself, whatever is padded and comes behind."""
    sources = []
    for tail in range(2):
        head = sequences([5])[0]
        rows = [[*head, *sequences([tail * 9], seed=tail)[0]], *sequences([20], seed=tail)]
        cache = ClusteredCache(SOME)
        logits(applied, rows, cache=cache)
        sources.append([layer.source[0].tolist() for layer in cache.layers])
    assert sources[0] == sources[1]
    assert [len(set(source)) for source in sources[0]] == list(SOME.clusters)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=5), st.sets(st.integers(1, 15)), st.booleans())
@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_in_pieces_is_as_each_sequence_alone_at_once(
    family: str, lengths: list[int], cuts: set[int], static: bool
) -> None:
    model = MODELS[family, static]
    rows = sequences(lengths, seed=sum(lengths))
    alone = [logits(model, [row])[0] for row in rows]
    assert close(logits(model, rows, [cut for cut in cuts if cut < max(lengths)]), alone, 2e-5)


def _applied(family: str, static: bool) -> Any:
    model = build(family)
    apply(model, SOME, static=static)
    return model


MODELS = {(family, static): _applied(family, static) for family, static in itertools.product(FAMILIES, (False, True))}


@torch.no_grad()
def test_without_a_cache_the_same(applied: Any) -> None:
    """As perplexity is measured: also under a padding mask, on either side."""
    rows = sequences(LENGTHS)
    expected = logits(applied, rows)
    for left in (True, False):
        ids, mask = padded(rows, left)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        outputs = applied(ids, attention_mask=mask, position_ids=positions, use_cache=False)
        assert outputs.get(CACHE) is None
        real = [each[seen.bool()] for each, seen in zip(outputs.logits, mask, strict=True)]
        assert close(real, expected, 2e-5)


@torch.no_grad()
def test_other_types_of_numbers(model: Any) -> None:
    wide = type(model)(model.config).double().eval()
    wide.load_state_dict(model.state_dict())
    ids = torch.tensor(sequences([30]))
    own = wide(ids).logits
    apply(wide, ONE_EACH)
    assert torch.allclose(wide(ids).logits, own, rtol=0, atol=1e-5)
    remove(wide)
    narrow = wide.to(torch.bfloat16)
    own = narrow(ids).logits
    apply(narrow, ONE_EACH)
    assert (narrow(ids).logits - own).abs().mean() < 0.02 * own.abs().mean()
    remove(narrow)


def test_the_model_is_given_back(model: Any) -> None:
    rows = sequences(LENGTHS)
    own, keys = logits(model, rows), set(vars(model))
    apply(model, SOME)
    assert not close(logits(model, rows), own, 1e-3)
    remove(model)
    assert all(torch.equal(a, b) for a, b in zip(logits(model, rows), own, strict=True))
    assert set(vars(model)) == keys
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_copy_and_a_file_of_an_applied_model(applied: Any, tmp_path: Path) -> None:
    """They attend by clusters, too, and can be given back."""
    rows = sequences(LENGTHS)
    expected = logits(applied, rows)
    torch.save(applied, tmp_path / "model.pt")
    for other in (copy.deepcopy(applied), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert close(logits(other, rows), expected, 1e-5)
        assert type(other.generate(torch.tensor([rows[0]]), max_new_tokens=2, return_dict_in_generate=True)[CACHE]) is (
            ClusteredCache
        )
        remove(other)
        assert not close(logits(other, rows), expected, 1e-3)
    assert close(logits(applied, rows), expected, 1e-5)


@pytest.mark.level2
def test_compiled() -> None:
    applied = MODELS["llama-gqa", False]
    rows = sequences([12, 20])
    expected = logits(applied, rows)
    assert close(logits(torch.compile(applied, backend="eager"), rows, [16, 17]), expected, 2e-5)
    torch.compiler.reset()


def test_another_model_of_the_same_configuration_keeps_its_attention(model: Any) -> None:
    other = type(model)(model.config).eval()
    rows = sequences(LENGTHS)
    own = logits(other, rows)
    apply(model, SOME)
    assert close(logits(other, rows), own, 1e-5)
    remove(model)
