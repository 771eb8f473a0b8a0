"""What clustered attention does not do is refused by name, with what to do."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, find_clusters, remove
from hvd_compress.attention.transformers_api import CACHE
from hvd_compress.errors import ConfigError, PlanError, UnsupportedError, UsageError
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, sequences

SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
IDS = torch.tensor(sequences([9]))
SMALL = {"n_embd": 16, "n_layer": 2, "n_head": 8, "vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    model = build(request.param)
    apply(model, SOME)
    return model


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "training": (lambda model: model.train()(IDS), r"in training mode: model\.eval\(\)"),
    "scores": (lambda model: model(IDS, output_attentions=True), "output_attentions"),
    "mask": (lambda model: model(IDS, attention_mask=torch.ones(1, 1, 9, 9)), r"a mask other than \(batch, tokens\)"),
    "dynamic cache": (lambda model: model(IDS, **{CACHE: DynamicCache()}), "a ClusteredCache, not a DynamicCache"),
    "old name": (
        lambda model: model.base_model(IDS, past_key_values=DynamicCache()),
        "a ClusteredCache, not a DynamicCache",
    ),
    "static cache": (
        lambda model: model(IDS, **{CACHE: StaticCache(config=model.config, max_cache_len=32)}),
        "a ClusteredCache, not a StaticCache",
    ),
    "packed": (
        lambda model: model(IDS, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), use_cache=False),
        "several sequences packed into one",
    ),
    "by position": (lambda model: model.base_model(IDS, None), "by name"),
    "static generation": (
        lambda model: model.generate(IDS, cache_implementation="static", max_new_tokens=2),
        "which is not static",
    ),
    "offloaded generation": (
        lambda model: model.generate(IDS, cache_implementation="offloaded", max_new_tokens=2),
        "not offloaded",
    ),
    "quantized generation": (
        lambda model: model.generate(IDS, cache_implementation="quantized", max_new_tokens=2),
        "not quantized",
    ),
    "prompt lookup": (
        lambda model: model.generate(IDS, prompt_lookup_num_tokens=2, max_new_tokens=2),
        "does not generate by assisted",
    ),
    "an assistant": (
        lambda model: model.generate(IDS, assistant_model=model, max_new_tokens=2),
        "does not generate by assisted",
    ),
    "a cache of generation": (
        lambda model: model.generate(IDS, **{CACHE: DynamicCache()}, max_new_tokens=2),
        "DynamicCache",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_refused(model: Any, call: str) -> None:
    run, words = CALLS[call]
    with torch.no_grad(), pytest.raises(UnsupportedError, match=words):
        run(model)


def test_gradients_are_refused(model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"within torch\.no_grad\(\)"):
        model(IDS)
    with torch.inference_mode():
        model(IDS)


@pytest.mark.parametrize(
    ("other", "static"), [(ClusterCounts.of([range(HEADS)] * LAYERS), False), (SOME, True)], ids=["counts", "static"]
)
@torch.no_grad()
def test_a_cache_of_other_counts_is_refused(model: Any, other: ClusterCounts, static: bool) -> None:
    with pytest.raises(ConfigError, match="other counts than those that were applied"):
        model(IDS, **{CACHE: ClusteredCache(other, static=static)})
    model(IDS, **{CACHE: ClusteredCache(ClusterCounts.model_validate(SOME.model_dump()))})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BertModel(BertConfig(hidden_size=16, num_attention_heads=8, num_hidden_layers=2)), "not BertModel"),
        (
            lambda: MistralForCausalLM(
                MistralConfig(
                    vocab_size=61, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=8
                )
            ),
            "not MistralForCausalLM",
        ),
        (lambda: torch.nn.Linear(2, 2), "not Linear"),
        (lambda: GPT2LMHeadModel(GPT2Config(add_cross_attention=True, **SMALL)), "add_cross_attention"),
        (lambda: GPT2LMHeadModel(GPT2Config(reorder_and_upcast_attn=True, **SMALL)), "reorder_and_upcast_attn"),
        (lambda: GPT2LMHeadModel(GPT2Config(sliding_window=4, **SMALL)), "sliding_window"),
        (lambda: GPT2LMHeadModel(GPT2Config(is_causal=False, **SMALL)), "is_causal"),
    ],
    ids=["bert", "mistral", "no model", "cross attention", "upcast", "sliding window", "both directions"],
)
def test_a_model_that_is_refused(make: Callable[[], Any], words: str) -> None:
    model = make().eval()
    for call in (lambda: apply(model, SOME), lambda: find_clusters(model, [[1, 2, 3]])):
        with pytest.raises(UnsupportedError, match=words):
            call()


def test_counts_of_another_model_are_refused() -> None:
    model = build("gpt2")
    with pytest.raises(PlanError, match="1 layers with 8 heads, and GPT2LMHeadModel has 2 layers with 8 heads"):
        apply(model, ClusterCounts.of([range(8)]))
    assert model.config._attn_implementation == "sdpa"


def test_applied_once_at_a_time(model: Any) -> None:
    with pytest.raises(UsageError, match="applied to this"):
        apply(model, SOME)
    with pytest.raises(UsageError, match="applied to this"):
        apply(model.base_model, SOME)
    remove(model)
    with pytest.raises(UsageError, match="no clustered attention is applied"):
        remove(model)
    apply(model.base_model, SOME)
    with torch.no_grad():
        assert isinstance(model(IDS)[CACHE], ClusteredCache)
    with pytest.raises(UsageError, match="already"):
        apply(model, SOME)
    remove(model.base_model)
