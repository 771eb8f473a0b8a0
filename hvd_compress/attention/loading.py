"""Models and tokenizers from a folder, or from the Hub of Hugging Face, for the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvd_compress.attention.families import require_family
from hvd_compress.attention.transformers_api import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    try_to_load_from_cache,
)
from hvd_compress.errors import ConfigError, HvdCompressError, shortened

LONGEST = 400
"""Characters of what transformers says."""
NOT_READ = "lm_head"
"""The weights that a model may lack: attention does not see the head."""


def load_config(name: str, *, download: bool) -> Any:
    """Return the configuration of a model, which says whether it is worth reading its weights.

    Args:
        name: a folder of save_pretrained(), or a model of the Hub.
        download: whether files that are not on this machine may be fetched from the Hub.

    Raises:
        UnsupportedError: the model is of another family.
        ConfigError: there is none, or it cannot be read.
    """
    with _refusals(name, "configuration"):
        config = AutoConfig.from_pretrained(_place(name, download), **_options(download))
    require_family(config.model_type, name)
    return config


def load_model(
    name: str, config: Any, *, download: bool, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[Any, bool]:
    """Return a model in eval mode, and whether it has a head, which gives logits.

    Args:
        name, download: as load_config() takes them.
        config: what it returned.
        device: where the weights are to be.
        dtype: of the weights; None: as they were saved.

    Raises:
        ConfigError: they cannot be read, some are missing, or the device is not there.
    """
    with _refusals(name, "weights"):
        model, loaded = AutoModelForCausalLM.from_pretrained(
            _place(name, download),
            config=config,
            dtype="auto" if dtype is None else dtype,
            output_loading_info=True,
            **_options(download),
        )
        missing = loaded["missing_keys"]
        lacking = sorted(each for each in missing if not each.startswith(NOT_READ))
        if lacking:
            raise ConfigError(f"{name} lacks {len(lacking)} weights of {type(model).__name__}, such as {lacking[0]}")
        return to_device(model, device).eval(), len(missing) == len(lacking)


def random_model(model_type: str, *, dtype: torch.dtype, device: torch.device, seed: int = 0, **settings: Any) -> Any:
    """Return a model with random weights in eval mode.

    Args:
        model_type: as configurations name it: gpt2 or llama.
        settings: of its configuration.
    """
    config = AutoConfig.for_model(model_type, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return to_device(model, device).eval()


def to_device(model: Any, device: torch.device) -> Any:
    """Return the model on a device. Raises ConfigError where it is not there, or too small."""
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ConfigError(f"cannot put {type(model).__name__} on {device}: {error}") from error


def load_tokenizer(name: str, *, download: bool) -> Any:
    """Return the tokenizer of a model. Raises ConfigError where there is none."""
    with _refusals(name, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(_place(name, download), **_options(download))
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes of a folder without its files
        raise ConfigError(f"{name} has no tokenizer")
    return tokenizer


def _options(download: bool) -> dict[str, bool]:
    return {"local_files_only": not download, "trust_remote_code": False}


def _place(name: str, download: bool) -> str:
    """Return the folder of a model, or its name where files may be fetched.

    A model that was fetched before is named by its folder, too: even with local_files_only a name has huggingface_hub
    ask its server for other things.
    """
    if download or os.path.isdir(name):
        return name
    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name of a model of the Hub
        found = None
    if not isinstance(found, str):
        raise ConfigError(
            f"{name} is neither a folder of save_pretrained() nor a model of the Hub that was fetched before: "
            "--download fetches one"
        )
    return os.path.dirname(found)


@contextmanager
def _refusals(name: str, what: str) -> Iterator[None]:
    """Whatever keeps transformers from reading files, which may hold anything, is a ConfigError."""
    try:
        yield
    except HvdCompressError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        raise ConfigError(
            f"cannot read the {what} of {name}: {type(error).__name__}: {shortened(words, LONGEST)}"
        ) from error
