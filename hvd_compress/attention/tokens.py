"""From text to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from hvd_compress.attention.loading import load_tokenizer
from hvd_compress.errors import ConfigError


class Tokens(Protocol):
    """How a model's text becomes token ids."""

    @property
    def start(self) -> Sequence[int]:
        """Token ids that every text begins with."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without those of its start."""


class ByteTokens:
    """A token a byte of UTF-8, for models that have no tokenizer."""

    start: Sequence[int] = ()

    def encode(self, text: str) -> list[int]:
        """Return the bytes."""
        return list(text.encode())


class ModelTokens:
    """Those of a model's tokenizer, which is loaded with the first text.

    Args:
        name: a folder of save_pretrained(), or a model of the Hub.
        download: whether files may be fetched from the Hub.
        otherwise: how to do without a tokenizer, in words.
    """

    def __init__(self, name: str, download: bool, otherwise: str):
        self._name, self._download, self._otherwise = name, download, otherwise

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            return load_tokenizer(self._name, download=self._download)
        except ConfigError as error:
            raise ConfigError(f"{error}: {self._otherwise}") from error

    @cached_property
    def start(self) -> Sequence[int]:
        """The token that marks the beginning, where the tokenizer adds one."""
        added = self._tokenizer("", verbose=False)["input_ids"]
        return [int(each) for each in added[:1] if each == self._tokenizer.bos_token_id]

    def encode(self, text: str) -> list[int]:
        """Return what the tokenizer makes of a text."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(each) for each in ids]
