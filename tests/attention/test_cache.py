"""The cache: its bytes, and what generation and people do with it."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, remove
from hvd_compress.attention.layout import clustered_layout
from hvd_compress.attention.transformers_api import CACHE
from hvd_compress.errors import ConfigError, UnsupportedError
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, logits, sequences

SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
DIM = 4


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    model = build(request.param)
    apply(model, SOME)
    return model


def storages(kept: Any, found: dict[int, int]) -> dict[int, int]:
    """Return the bytes of all storages of tensors that something refers to, by their address."""
    if isinstance(kept, torch.Tensor):
        found[kept.untyped_storage().data_ptr()] = kept.untyped_storage().nbytes()
    elif isinstance(kept, list | tuple):
        for each in kept:
            storages(each, found)
    elif hasattr(kept, "__dict__"):
        for each in vars(kept).values():
            storages(each, found)
    return found


@pytest.mark.parametrize("tokens", [64, 128])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_bytes_are_those_of_the_formula(family: str, tokens: int) -> None:
    """With keys of its own for each head: sum over layers of (k + H) / (2 L H) of the full cache."""
    model = build(family)
    rows = sequences([tokens] * 3)
    with torch.no_grad():
        full = model(torch.tensor(rows), use_cache=True)[CACHE]
    apply(model, SOME)
    for cuts in ((), (tokens - 1,), range(1, tokens)):
        cache = ClusteredCache(SOME)
        logits(model, rows, cuts, cache)
        full_bytes = sum(
            each.untyped_storage().nbytes() for layer in full.layers for each in (layer.keys, layer.values)
        )
        assert full_bytes == 3 * LAYERS * 2 * HEADS * tokens * DIM * 4
        share = Fraction(sum(k + HEADS for k in SOME.clusters), 2 * LAYERS * HEADS)
        assert float(share) == pytest.approx(SOME.cache_share)
        assert cache.storage_bytes == share * full_bytes
        everything = sum(storages(cache.layers, {}).values())
        assert everything - cache.storage_bytes < 3 * LAYERS * 4000  # first scores, indices: none of it grows
    remove(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_room_is_whole_blocks(family: str) -> None:
    model = build(family)
    apply(model, SOME)
    row = sequences([70])
    cache, by_one = ClusteredCache(SOME), ClusteredCache(SOME, block_tokens=1)
    assert torch.equal(logits(model, row, range(1, 70), cache)[0], logits(model, row, range(1, 70), by_one)[0])
    assert cache.storage_bytes * 70 == by_one.storage_bytes * 128
    rows = sum(len(layer.layout.key_rows) + len(layer.layout.value_rows) for layer in by_one.layers)
    assert by_one.storage_bytes == rows * 70 * DIM * 4
    if family == "llama-gqa":
        used = [len({source // 2 for source in layer.source[0].tolist()}) for layer in by_one.layers]
        assert rows == sum(used) + LAYERS * HEADS // 2
    else:
        assert rows == sum(k + HEADS for k in SOME.clusters)


def test_keys_stay_until_each_sequence_has_five_tokens(model: Any) -> None:
    key_heads = model.config.num_key_value_heads if hasattr(model.config, "num_key_value_heads") else HEADS
    rows = sequences([2, 20])
    cache = ClusteredCache(SOME)
    with torch.no_grad():
        logits(model, rows, cache=cache)
        for token in range(3):
            assert [layer.clustered for layer in cache.layers] == [False, False]
            assert cache.layers[0].known.tolist() == [False, True]
            keys, values = cache.layers[0].whole()
            assert keys.shape == values.shape == (2, key_heads, 20 + token, DIM)
            mask = torch.tensor([[0] * 18 + [1] * (3 + token), [1] * (21 + token)])
            positions = torch.tensor([[2 + token], [20 + token]])
            model(torch.tensor([[5], [6]]), attention_mask=mask, position_ids=positions, **{CACHE: cache})
    assert [layer.clustered for layer in cache.layers] == [True, True]
    assert cache.get_seq_length() == 23
    assert cache.batch_size == 2


BATCH_OPERATIONS: dict[str, tuple[Callable[[ClusteredCache], None], list[int]]] = {
    "reorder": (lambda cache: cache.reorder_cache(torch.tensor([2, 2, 0])), [2, 2, 0]),
    "rotate": (lambda cache: cache.reorder_cache(torch.tensor([1, 2, 0])), [1, 2, 0]),
    "keep": (lambda cache: cache.reorder_cache(torch.tensor([0, 1, 2])), [0, 1, 2]),
    "repeat": (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    "select": (lambda cache: cache.batch_select_indices(torch.tensor([2, 1])), [2, 1]),
    "select by bool": (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
}


@pytest.mark.parametrize("tokens", [3, 5, 9])
@pytest.mark.parametrize("operation", BATCH_OPERATIONS)
def test_sequences_move_with_their_clusters(model: Any, operation: str, tokens: int) -> None:
    """Before their clusters are known, and after."""
    move, order = BATCH_OPERATIONS[operation]
    rows = sequences([20, 20, 20])
    expected = [logits(model, [rows[row]])[0][tokens:] for row in order]
    cache = ClusteredCache(SOME)
    logits(model, [row[:tokens] for row in rows], cache=cache)
    if tokens >= 5:
        assert len({tuple(row) for row in cache.layers[0].source.tolist()}) == 3  # else this test would show little
    move(cache)
    assert cache.batch_size == len(order)
    found = []
    for cut in (slice(tokens, tokens + 1), slice(tokens + 1, 20)):
        with torch.no_grad():
            found.append(model(torch.tensor([rows[row][cut] for row in order]), **{CACHE: cache}).logits)
    assert all(
        torch.allclose(a, b, rtol=0, atol=2e-5) for a, b in zip(torch.cat(found, 1), torch.stack(expected), strict=True)
    )


@pytest.mark.parametrize(("tokens", "left"), [(20, 5), (20, 19), (4, 2), (130, 60), (20, 0), (3, 0)])
def test_crop(model: Any, tokens: int, left: int) -> None:
    first, second = sequences([tokens, 30], seed=1)
    expected = logits(model, [[*first[:left], *second]])[0]
    cache = ClusteredCache(SOME)
    logits(model, [first], cache=cache)
    full_bytes = cache.storage_bytes
    cache.crop(left - tokens)
    assert cache.get_seq_length() == left
    assert cache.storage_bytes == (full_bytes // -(-tokens // 64)) * -(-left // 64)
    with torch.no_grad():
        found = model(torch.tensor([second]), **{CACHE: cache}).logits[0]
    assert torch.allclose(found, expected[left:], rtol=0, atol=2e-5)


def test_crop_of_a_batch_in_which_one_sequence_is_short(model: Any) -> None:
    """What was known of the long one is found again."""
    long, short, more = sequences([6, 2, 10], seed=2)
    cache = ClusteredCache(SOME)
    logits(model, [long, short], cache=cache)
    assert cache.layers[0].known.tolist() == [True, False]
    cache.crop(-2)
    assert cache.layers[0].known.tolist() == [False, False]
    mask = torch.tensor([[1] * 14, [0] * 4 + [1] * 10])
    positions = torch.tensor([list(range(4, 14)), list(range(10))])
    with torch.no_grad():
        found = model(torch.tensor([more, more]), attention_mask=mask, position_ids=positions, **{CACHE: cache}).logits
    assert torch.allclose(found[0], logits(model, [[*long[:4], *more]])[0][4:], rtol=0, atol=2e-5)
    assert torch.allclose(found[1], logits(model, [more])[0], rtol=0, atol=2e-5)


def test_a_crop_that_would_need_dropped_keys_is_refused(model: Any) -> None:
    cache = ClusteredCache(SOME)
    logits(model, sequences([9, 6]), cache=cache)
    cache.crop(-1)
    with pytest.raises(UnsupportedError, match=r"cannot be cropped to 7 tokens: .*reset\(\) it"):
        cache.crop(-1)
    assert cache.get_seq_length() == 8
    with pytest.raises(UnsupportedError, match="as a negative one"):
        cache.crop(5)
    cache.crop(0)
    cache.reset()
    assert (cache.get_seq_length(), cache.batch_size, cache.storage_bytes) == (0, -1, 0)
    rows = sequences([12, 12], seed=9)
    assert torch.allclose(logits(model, rows, cache=cache)[1], logits(model, [rows[1]])[0], rtol=0, atol=2e-5)


def test_what_a_cache_is_not() -> None:
    cache = ClusteredCache(SOME)
    assert (cache.is_compileable, cache.is_croppable, cache.is_sliding) == (False, True, [False, False])
    assert cache.get_max_length() == -1
    for call in (lambda: cache.early_initialization(1, 8, 4), cache.layers[0].offload, cache.layers[0].prefetch):
        with pytest.raises(UnsupportedError):
            call()
    for block in (0, True, 1.5):
        with pytest.raises(ConfigError, match="block_tokens"):
            ClusteredCache(SOME, block_tokens=block)  # type: ignore[arg-type]


def test_layout_of_clusters() -> None:
    """Two sequences of four heads: sorted by the size of clusters, and each group is a slice of keys and of values."""
    layout = clustered_layout([[0, 1, 1, 0], [2, 1, 2, 2]], key_heads=4)
    assert layout.key_rows == (6, 0, 1, 5)
    assert layout.value_rows == (4, 6, 7, 0, 3, 1, 2, 5)
    assert [(g.key, g.value, g.clusters, g.members, g.queries) for g in layout.groups] == [
        (0, 0, 1, 3, (6,)),
        (1, 3, 2, 2, (0, 1)),
        (3, 7, 1, 1, (5,)),
    ]
    assert layout.outputs == (3, 5, 6, 4, 0, 7, 1, 2)


def test_layout_under_grouped_queries() -> None:
    """Heads 0 and 1 share keys, and 2 and 3: a representative serves heads of both, whose values differ."""
    layout = clustered_layout([[0, 0, 0, 0], [0, 1, 1, 3]], key_heads=2)
    assert layout.key_rows == (0, 2, 3)  # of the first sequence nobody uses the second keys
    assert [(g.key, g.value, g.queries) for g in layout.groups] == [
        (0, 0, (0,)),
        (0, 1, (0,)),
        (1, 2, (4, 5)),
        (1, 3, (5,)),
        (2, 3, (7,)),
    ]
    assert layout.outputs == (0, 0, 1, 1, 2, 3, 4, 5)
