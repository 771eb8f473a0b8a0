"""Small random models, and clustered attention as a reference: scores of all heads, and no cache."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hvd_compress.attention import transformers_api
from hvd_compress.attention.transformers_api import CACHE

HEADS, LAYERS, VOCABULARY, POSITIONS = 8, 2, 61, 160
FAMILIES = ("gpt2", "llama", "llama-gqa")


def build(family: str, seed: int = 0) -> Any:
    """Return a model with 2 layers of 8 heads; of "llama-gqa" each 2 heads share keys and values."""
    torch.manual_seed(seed)
    if family == "gpt2":
        gpt2 = GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=POSITIONS,
            n_embd=32,
            n_layer=LAYERS,
            n_head=HEADS,
            initializer_range=0.25,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
        model = GPT2LMHeadModel(gpt2)
    else:
        llama = LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=POSITIONS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2 if family == "llama-gqa" else HEADS,
            initializer_range=0.25,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
        model = LlamaForCausalLM(llama)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model.eval()


def plant(model: Any, layer: int, membership: Sequence[int]) -> None:
    """Have each head of a layer compute the scores of the one that `membership` names, by copies of its weights."""
    with torch.no_grad():
        if isinstance(model, GPT2LMHeadModel):
            c_attn = model.transformer.h[layer].attn.c_attn
            dim = c_attn.weight.shape[0] // HEADS
            for part in range(2):
                for parameter in (c_attn.weight, c_attn.bias):
                    heads = parameter[..., part * 32 : (part + 1) * 32].unflatten(-1, (HEADS, dim))
                    heads.copy_(heads[..., list(membership), :].clone())
        else:
            attention = model.model.layers[layer].self_attn
            for weight, sources in (
                (attention.q_proj.weight, membership),
                (attention.k_proj.weight, _key_sources(model, membership)),
            ):
                heads = weight.unflatten(0, (len(sources), -1))
                heads.copy_(heads[list(sources)].clone())


def _key_sources(model: Any, membership: Sequence[int]) -> list[int]:
    """Under grouped-query attention the heads of a group are planted after heads of one group."""
    ratio = HEADS // model.config.num_key_value_heads
    sources = [[membership[head] // ratio for head in range(at, at + ratio)] for at in range(0, HEADS, ratio)]
    assert all(len(set(each)) == 1 for each in sources)
    return [each[0] for each in sources]


def sequences(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for length in lengths]


def padded(rows: Sequence[Sequence[int]], left: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask, int64 (batch, tokens)."""
    longest = max(map(len, rows))
    pads = [[0] * (longest - len(row)) for row in rows]
    ids = [[*pad, *row] if left else [*row, *pad] for pad, row in zip(pads, rows, strict=True)]
    return torch.tensor(ids), (torch.tensor(ids) != 0).long()


@torch.no_grad()
def logits(
    model: Any, rows: Sequence[Sequence[int]], cuts: Sequence[int] = (), cache: Any = None
) -> list[torch.Tensor]:
    """Return the logits of the real tokens of each sequence. The batch is padded on the left, and passed in pieces that
    end at `cuts`."""
    ids, mask = padded(rows)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    found, start = [], 0
    for end in [*sorted(cuts), ids.shape[1]]:
        if end > start:
            piece = slice(start, end)
            rest = {"attention_mask": mask[:, :end], "position_ids": positions[:, piece], CACHE: cache}
            outputs = model(ids[:, piece], use_cache=True, **rest)
            cache, start = outputs[CACHE], end
            found.append(outputs.logits)
    joined = torch.cat(found, 1)
    return [each[-len(row) :] for each, row in zip(joined, rows, strict=True)]


@contextmanager
def reference(model: Any, memberships: Sequence[Sequence[int]], first: int = 5) -> Iterator[None]:
    """Have a model attend by clusters in the plain way: one sequence without padding, all of it at once."""

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        heads, tokens = query.shape[1], query.shape[2]
        key, value = (each.repeat_interleave(heads // each.shape[1], 1) for each in (key, value))
        products = query[0] @ key[0].mT * kwargs["scaling"]
        scores = products.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf).softmax(-1)
        clustered = scores[list(memberships[module.layer_idx])]
        shared = torch.cat([scores[:, :first], clustered[:, first:]], 1)
        return (shared @ value[0]).transpose(0, 1).unsqueeze(0), None

    transformers_api.register("test_reference", attention)
    before = model.config._attn_implementation
    model.set_attn_implementation("test_reference")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
