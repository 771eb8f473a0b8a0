"""Samples of text from a file: lines of JSON, or plain text that is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hvd_compress.attention.tokens import Tokens
from hvd_compress.errors import ConfigError, shortened

LINES = ".jsonl"
"""The suffix of files with a sample a line."""
CHARACTERS = 16
"""Of plain text that are read for each token that is asked for."""
FEWEST = 2
"""Tokens of a sample: one alone has no scores."""


@dataclass(frozen=True)
class Cut:
    """How many samples there are to be.

    Attributes:
        length: tokens of a sample at most.
        limit: samples at most.
        vocabulary: token ids are below it.
    """

    length: int
    limit: int
    vocabulary: int


def read_samples(path: Path, tokens: Tokens, cut: Cut) -> list[list[int]]:
    """Return the token ids of samples.

    Of a file named .jsonl each line is an object with "text" or with "ids", a list of token ids; other fields are not
    looked at. A sample is its beginning; texts of fewer than two tokens are left out. Of any other file the text is cut
    into consecutive samples.

    Args:
        tokens: of texts.

    Raises:
        ConfigError: names the file and the line that is no sample.
    """
    if path.suffix == ".json":
        raise ConfigError(f"{path}: samples are {LINES}, one a line, or plain text")
    try:
        with path.open(encoding="utf-8-sig") as file:
            if path.suffix == LINES:
                samples = list(islice(_of_lines(file, path, tokens, cut), cut.limit))
            else:
                samples = _of_text(file.read(CHARACTERS * cut.length * cut.limit), path, tokens, cut)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text (UTF-8)") from None
    if not samples:
        raise ConfigError(f"{path} has no sample: no text of {FEWEST} tokens or more")
    return samples


def _of_text(text: str, path: Path, tokens: Tokens, cut: Cut) -> list[list[int]]:
    ids = _encoded(text, str(path), tokens, cut)
    step = max(1, cut.length - len(tokens.start))
    windows = ([*tokens.start, *ids[place : place + step]] for place in range(0, len(ids), step))
    return [window for window in windows if len(window) >= FEWEST][: cut.limit]


def _of_lines(lines: Iterator[str], path: Path, tokens: Tokens, cut: Cut) -> Iterator[list[int]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            sample = _of_line(line, f"{path}, line {number}", tokens, cut)
            if len(sample) >= FEWEST:
                yield sample


def _of_line(line: str, where: str, tokens: Tokens, cut: Cut) -> list[int]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON that can be read ({error})") from None
    if not isinstance(said, dict) or ("text" in said) == ("ids" in said):
        raise ConfigError(f'{where}: not an object with "text", or with "ids", a list of token ids')
    if "ids" in said:
        ids = _checked(said["ids"], where, cut)[: cut.length]
        if len(ids) < FEWEST:
            raise ConfigError(f"{where}: {len(ids)} token ids: {FEWEST} or more are a sample")
        return ids
    if not isinstance(said["text"], str):
        raise ConfigError(f'{where}: "text" is {shortened(repr(said["text"]), 80)}')
    return [*tokens.start, *_encoded(said["text"], where, tokens, cut)][: cut.length]


def _encoded(text: str, where: str, tokens: Tokens, cut: Cut) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: half a character, which no tokenizer takes") from None
    return _checked(tokens.encode(text), where, cut)


def _checked(ids: object, where: str, cut: Cut) -> list[int]:
    if not isinstance(ids, list) or any(type(each) is not int for each in ids):
        raise ConfigError(f'{where}: "ids" are not a list of whole numbers')
    wrong = next((each for each in ids if not 0 <= each < cut.vocabulary), None)
    if wrong is not None:
        raise ConfigError(f"{where}: token {wrong} is not among the {cut.vocabulary} of the model")
    return ids
