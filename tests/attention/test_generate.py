"""model.generate under clustered attention: as the model's own with a cluster a head, else as without a cache."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

from typing import Any

import pytest
import torch

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, remove
from hvd_compress.attention.transformers_api import CACHE
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, padded, sequences
from tests.covering import covering

ONE_EACH = ClusterCounts.of([range(HEADS)] * LAYERS)
SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"do_sample": False, "num_beams": 4, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 3},
    "pieces": {"do_sample": False, "prefill_chunk_size": 7},
}
PROMPTS = {"short": (2, 1, 3), "mixed": (3, 20, 5, 1), "long": (70, 40), "alone": (12,)}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def generated(model: Any, lengths: tuple[int, ...], way: dict[str, Any], **more: Any) -> list[list[int]]:
    ids, mask = padded(sequences(lengths, seed=len(lengths)))
    torch.manual_seed(4)
    found: list[list[int]] = model.generate(
        ids, attention_mask=mask, max_new_tokens=12, pad_token_id=0, eos_token_id=7, **way, **more
    ).tolist()
    return found


@pytest.mark.parametrize(("model", "way", "prompts"), covering(FAMILIES, list(WAYS), list(PROMPTS)), indirect=["model"])
def test_with_one_head_a_cluster_it_is_the_model_s_own(model: Any, way: str, prompts: str) -> None:
    own = generated(model, PROMPTS[prompts], WAYS[way])
    apply(model, ONE_EACH)
    assert generated(model, PROMPTS[prompts], WAYS[way]) == own
    remove(model)
    assert generated(model, PROMPTS[prompts], WAYS[way]) == own


@pytest.mark.parametrize(
    ("model", "way", "prompts", "static"),
    covering(FAMILIES, [way for way in WAYS if way != "pieces"], list(PROMPTS), [False, True]),
    indirect=["model"],
)
def test_with_a_cache_it_is_as_without(model: Any, way: str, prompts: str, static: bool) -> None:
    """Beams that part before their fifth token have clusters of their own, which move with them."""
    apply(model, SOME, static=static)
    expected = generated(model, PROMPTS[prompts], WAYS[way], use_cache=False)
    assert generated(model, PROMPTS[prompts], WAYS[way]) == expected


def test_pieces_of_a_prompt_make_no_difference(model: Any) -> None:
    apply(model, SOME)
    at_once = generated(model, PROMPTS["mixed"], WAYS["greedy"])
    for size in (1, 3, 19, 64):
        assert generated(model, PROMPTS["mixed"], {"do_sample": False, "prefill_chunk_size": size}) == at_once


def test_the_cache_that_is_returned_goes_on(model: Any) -> None:
    apply(model, SOME)
    row = torch.tensor(sequences([9]))
    first = model.generate(row, max_new_tokens=4, do_sample=False, pad_token_id=0, return_dict_in_generate=True)
    assert isinstance(first[CACHE], ClusteredCache)
    assert first[CACHE].get_seq_length() == 12
    assert all(layer.clustered for layer in first[CACHE].layers)
    more = model.generate(first.sequences, max_new_tokens=4, do_sample=False, pad_token_id=0, **{CACHE: first[CACHE]})
    assert more.tolist() == model.generate(row, max_new_tokens=8, do_sample=False, pad_token_id=0).tolist()
