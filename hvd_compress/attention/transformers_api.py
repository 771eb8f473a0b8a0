"""What this room uses of transformers: the one place that imports it."""

from __future__ import annotations

import inspect
from typing import Any

from hvd_compress.extras import needed

with needed("transformers", "hvd_compress.attention"):
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.cache_utils import Cache, CacheLayerMixin
    from transformers.generation.configuration_utils import GenerationMode
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model, GPT2PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaModel, LlamaPreTrainedModel
    from transformers.pytorch_utils import Conv1D

CACHE = next(name for name in ("cache", "past_key_values") if name in inspect.signature(LlamaModel.forward).parameters)
"""The argument of models that is their cache, and the part of their outputs; its name has changed."""

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "ALL_MASK_ATTENTION_FUNCTIONS",
    "CACHE",
    "AutoConfig",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "Cache",
    "CacheLayerMixin",
    "Conv1D",
    "GPT2Model",
    "GPT2PreTrainedModel",
    "GenerationMode",
    "LlamaModel",
    "LlamaPreTrainedModel",
    "register",
    "sdpa_attention_forward",
    "try_to_load_from_cache",
]


def register(name: str, attention: Any) -> None:
    """Make `attention` an attention implementation of transformers, with the masks of its "sdpa": boolean (batch, 1,
    queries, keys), or None where all is causal and nothing is padded."""
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
