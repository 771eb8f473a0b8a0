"""The models of transformers that clustered attention knows, and what it refuses of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hvd_compress.attention.projections import Part
from hvd_compress.attention.transformers_api import GPT2Model, GPT2PreTrainedModel, LlamaModel, LlamaPreTrainedModel
from hvd_compress.errors import UnsupportedError

_KNOWN = ((GPT2PreTrainedModel, GPT2Model), (LlamaPreTrainedModel, LlamaModel))
"""The class of all models of a family, and that of the decoder in each."""


@dataclass(frozen=True)
class Geometry:
    """Of a model's attention.

    Attributes:
        decoder: the module with the layers, which all other parts of the model call.
        heads: query heads of a layer.
        key_heads: heads of keys and values of a layer; fewer than heads under grouped-query attention.
        head_dim: elements of a key, and of a value.
        positions: the longest sequence.
        vocabulary: token ids are below it.
    """

    decoder: Any
    name: str
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    positions: int
    vocabulary: int


def geometry(model: Any) -> Geometry:
    """Return the geometry of a model.

    Raises:
        UnsupportedError: it is neither a GPT-2 nor a Llama of transformers, or its configuration asks for more.
    """
    name = type(model).__name__
    decoder = next(
        (decoder for family, kind in _KNOWN if isinstance(model, family) for decoder in _of(model, kind)), None
    )
    if decoder is None:
        raise UnsupportedError(
            f"clustered attention knows GPT-2 and Llama of transformers (GPT2LMHeadModel, LlamaForCausalLM), not {name}"
        )
    config = decoder.config
    for wrong, what in (
        (config.is_encoder_decoder, "an encoder-decoder"),
        (getattr(config, "add_cross_attention", False), "cross attention (add_cross_attention)"),
        (getattr(config, "sliding_window", None), "sliding windows (sliding_window)"),
        (
            set(getattr(config, "layer_types", None) or ()) - {"full_attention"},
            "layers without full attention (layer_types)",
        ),
        (not getattr(config, "is_causal", True), "attention that is not causal (is_causal=False)"),
        (getattr(config, "reorder_and_upcast_attn", False), "reorder_and_upcast_attn; set it to False"),
    ):
        if wrong:
            raise UnsupportedError(
                f"clustered attention of {name} is for decoders with full causal attention alone, not {what}"
            )
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Geometry(
        decoder,
        name,
        config.num_hidden_layers,
        config.num_attention_heads,
        key_heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        config.max_position_embeddings,
        config.vocab_size,
    )


def require_family(model_type: str, name: str) -> None:
    """Raise UnsupportedError for a type of model, as configurations name it, that is of no known family."""
    known = [family.config_class.model_type for family, _ in _KNOWN]
    if model_type not in known:
        raise UnsupportedError(
            f"clustered attention knows GPT-2 and Llama of transformers ({', '.join(known)}), and {name} is a "
            f"{model_type}"
        )


def projections(shape: Geometry) -> list[tuple[Any, list[tuple[nn.Module, tuple[Part, ...]]]]]:
    """Return each attention of a decoder with its projections to queries and keys, and what their outputs are."""
    found: list[tuple[Any, list[tuple[nn.Module, tuple[Part, ...]]]]] = []
    last = "c_attn" if isinstance(shape.decoder, GPT2Model) else "k_proj"
    for attention in shape.decoder.modules():
        if not hasattr(attention, last):
            continue
        dim = attention.head_dim
        query, key = Part("query", shape.heads * dim, dim), Part("key", shape.key_heads * dim, dim)
        if last == "c_attn":
            value = Part("value", shape.key_heads * dim, dim)
            found.append((attention, [(attention.c_attn, (query, key, value))]))
        else:
            found.append((attention, [(attention.q_proj, (query,)), (attention.k_proj, (key,))]))
    return found


def _of(model: Any, kind: Any) -> list[Any]:
    return [module for module in model.modules() if type(module) is kind][:1]
