"""What people do to a model and its cache beside calling it: the same results, or an error before anything changes."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, find_clusters, remove
from hvd_compress.attention import attend as attend_module
from hvd_compress.attention.transformers_api import CACHE
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, sequences

SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
EACH = ClusterCounts.of([range(HEADS)] * LAYERS)


def ids(*lengths: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(sequences(list(lengths), seed=seed))


def call(model: Any, tokens: torch.Tensor, cache: ClusteredCache) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens, **{CACHE: cache}).logits
        return found


def lengths(cache: ClusteredCache) -> list[int]:
    return [layer.get_seq_length() for layer in cache.layers]


@pytest.fixture(params=FAMILIES)
def applied(request: pytest.FixtureRequest) -> Any:
    model = build(request.param)
    apply(model, SOME)
    return model


@pytest.mark.parametrize("prompts", [(3,), (20,), (3, 20)])
@pytest.mark.parametrize("family", FAMILIES)
def test_under_autocast(family: str, prompts: tuple[int, ...]) -> None:
    """With one head a cluster it generates what the model itself does."""
    model = build(family)
    padded = torch.zeros(len(prompts), max(prompts), dtype=torch.int64)
    mask = torch.zeros_like(padded)
    for row, length in enumerate(prompts):
        padded[row, -length:] = ids(length, seed=row)
        mask[row, -length:] = 1
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    with torch.autocast("cpu", torch.bfloat16):
        expected = model.generate(padded, **options)
        apply(model, EACH)
        assert model.generate(padded, **options).shape == expected.shape


def test_a_cache_goes_on_outside_of_inference_mode(applied: Any) -> None:
    """Whether its clusters are known by then or not."""
    for prompt in (3, 20):
        cache, expected = ClusteredCache(SOME), ClusteredCache(SOME)
        with torch.inference_mode():
            applied(ids(prompt), **{CACHE: cache})
        call(applied, ids(prompt), expected)
        for tokens in (ids(1), ids(6), ids(1)):
            torch.testing.assert_close(call(applied, tokens, cache), call(applied, tokens, expected))
        with torch.inference_mode():
            cache.reorder_cache(torch.tensor([0]))
            applied(ids(1), **{CACHE: cache})


@pytest.mark.parametrize("prompt", [3, 20])
def test_another_batch_is_refused_and_changes_nothing(applied: Any, prompt: int) -> None:
    cache = ClusteredCache(SOME)
    call(applied, ids(prompt, prompt), cache)
    other = copy.deepcopy(cache)
    for tokens in (ids(1), ids(1, 1, 1), ids(2, 2, 2)):
        with pytest.raises(UnsupportedError, match="has 2 sequences"):
            call(applied, tokens, cache)
    assert lengths(cache) == [prompt] * LAYERS
    torch.testing.assert_close(call(applied, ids(1, 1), cache), call(applied, ids(1, 1), other))


def test_another_dtype_is_refused_and_changes_nothing() -> None:
    model = build("gpt2")
    apply(model, SOME)
    cache = ClusteredCache(SOME)
    with torch.autocast("cpu", torch.bfloat16):
        call(model, ids(20), cache)
        call(model, ids(1), cache)
    with pytest.raises(UnsupportedError, match="go on as it was filled"):
        call(model, ids(1), cache)
    assert lengths(cache) == [21] * LAYERS


def test_gradients_are_refused_and_change_nothing(applied: Any) -> None:
    cache = ClusteredCache(SOME)
    call(applied, ids(10), cache)
    with pytest.raises(UnsupportedError, match=r"no_grad"):
        applied(ids(1), **{CACHE: cache})
    assert lengths(cache) == [10] * LAYERS
    call(applied, ids(1), cache)
    for parameter in applied.parameters():
        parameter.requires_grad_(False)
    assert not applied(ids(1), **{CACHE: cache}).logits.requires_grad


def test_a_model_that_was_set_to_another_attention_is_refused(applied: Any) -> None:
    cache = ClusteredCache(SOME)
    call(applied, ids(10), cache)
    applied.set_attn_implementation("sdpa")
    with pytest.raises(UnsupportedError, match="sdpa"):
        call(applied, ids(1), cache)


def test_pieces_and_crops_between_tokens(applied: Any) -> None:
    """Across the blocks by which storage grows: what the kernel was told of it before is not used."""
    tokens, cache = ids(140), ClusteredCache(SOME)
    expected = ClusteredCache(SOME)
    whole = call(applied, tokens, expected)

    def go_on(begin: int, end: int) -> None:
        torch.testing.assert_close(
            call(applied, tokens[:, begin:end], cache), whole[:, begin:end], rtol=1e-4, atol=1e-4
        )

    for begin, end in ((0, 60), (60, 61), (61, 66), (66, 67), (67, 131), (131, 132)):
        go_on(begin, end)
    cache.crop(-72)
    go_on(60, 61)
    go_on(61, 90)
    go_on(90, 91)
    cache.crop(-30)
    go_on(61, 140)


def test_samples_that_the_model_writes_itself() -> None:
    model = build("gpt2")

    def written() -> Iterator[torch.Tensor]:
        for seed in range(3):
            yield model.generate(ids(4, seed=seed), max_new_tokens=20, do_sample=False)[0]

    assert find_clusters(model, written(), plateau=0.3) == find_clusters(model, list(written()), plateau=0.3)


def test_weights_that_are_not_finite_are_told() -> None:
    model = build("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="layer 1 of GPT2LMHeadModel has scores that are not finite"):
        find_clusters(model, sequences([20, 30]))


def test_counts_are_no_path() -> None:
    with pytest.raises(ConfigError, match=r"ClusterCounts\.load"):
        apply(build("gpt2"), "counts.json")  # type: ignore[arg-type]


def test_an_interrupt_leaves_projections_whole(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch runs no hooks behind it."""
    from hvd_compress.attention import projections

    monkeypatch.setattr(projections, "RUN_BYTES", 0)
    cache = ClusteredCache(SOME)
    call(applied, ids(10), cache)

    def interrupt(*_: Any) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(attend_module, "decode_attention", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call(applied, ids(1), cache)
    assert getattr(projections._now, "layer", None) is None


def test_remove_leaves_what_others_have_put_around_a_projection() -> None:
    model = build("llama")
    apply(model, SOME)
    linear = model.model.layers[0].self_attn.q_proj
    own, x = linear.forward, torch.randn(1, 1, 32)
    linear.forward = lambda y: 2 * own(y)
    remove(model)
    assert torch.equal(linear(x), 2 * nn.functional.linear(x, linear.weight))


def test_apply_that_fails_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gpt2")

    def fail(_: str) -> None:
        raise RuntimeError("as asked")

    with monkeypatch.context() as patched:
        patched.setattr(model, "set_attn_implementation", fail)
        with pytest.raises(RuntimeError, match="as asked"):
            apply(model, SOME)
    with pytest.raises(UsageError):
        remove(model)
    apply(model, SOME)
    remove(model)


def test_projections_under_autocast_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_compress.attention import projections

    monkeypatch.setattr(projections, "RUN_BYTES", 0)
    monkeypatch.setattr(projections, "_project", lambda *_: pytest.fail("in pieces"))
    model = build("llama")
    apply(model, SOME)
    cache = ClusteredCache(SOME)
    with torch.autocast("cpu", torch.bfloat16):
        call(model, ids(10), cache)
        call(model, ids(1), cache)


def test_large_projections_are_computed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the threshold as it is: of 8 heads of 96 dimensions 4 are left out, which saves 1.2 MB of weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from hvd_compress.attention import projections

    asked: list[Any] = []
    own = projections._project
    monkeypatch.setattr(projections, "_project", lambda *given: asked.append(given[-1]) or own(*given))
    settings = {"vocab_size": 61, "hidden_size": 768, "intermediate_size": 64, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**settings, num_attention_heads=8, num_key_value_heads=8)).eval()
    counts = ClusterCounts.of([[0, 0, 0, 0, 0, 5, 6, 7]])
    apply(model, counts, static=True)
    cache = ClusteredCache(counts, static=True)
    call(model, ids(10), cache)
    assert not asked
    call(model, ids(1), cache)
    assert asked == [((0, 96), (480, 768))] * 2
