"""Files of JSON with a schema: what is wrong with one is said by its path in the file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hvd_compress.errors import PlanError, shortened

_WORDS = {
    "extra_forbidden": "unknown field",
    "missing": "is missing",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""What is wrong with a field, by pydantic's type of the error."""
TOLD, LONGEST = 8, 400
"""Of what is wrong with a file, so much is in the message; and so many characters of each, which may quote it."""


class Strict(BaseModel):
    """A part of a file: no other fields than these, and no other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


File = TypeVar("File", bound=Strict)


def read(path: str | Path, kind: type[File], what: str) -> File:
    """Read a file.

    Args:
        what: it is, in an error: "plan".

    Raises:
        PlanError: it cannot be read, or is no `kind`; names the fields by their path.
    """
    text, _ = parsed(path, what)
    try:
        return kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        words = [f"{'.'.join(map(str, each['loc'])) or f'the {what}'}: {_word_of(each)}" for each in error.errors()]
        raise PlanError(f"{path} is no {what}: {summary(words)}") from None


def parsed(path: str | Path, what: str) -> tuple[str, Any]:
    """Return the text of a file of JSON, and what it says. Raises PlanError where it cannot be read, or is none."""
    try:
        text = Path(path).read_text()
        said = json.loads(text, object_pairs_hook=_once_each)
        json.dumps(said, ensure_ascii=False).encode()  # raises for half a character, which could not be printed
        return text, said
    except OSError as error:
        raise PlanError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanError(f"{path} is no {what}: not text") from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is no {what}: not JSON that can be read ({error})") from None


def write(path: str | Path, said: Mapping[str, Any], what: str) -> None:
    """Write a file at once: what is there stays until all of it is written. Raises PlanError where it cannot be."""
    draft = Path(f"{path}.{os.getpid()}.part")
    try:
        try:
            draft.write_text(json.dumps(said, indent=1) + "\n")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise PlanError(f"cannot write the {what} {path}: {error.strerror}") from None


def summary(words: Sequence[str]) -> str:
    """Return the first few of many findings, and how many more there are."""
    more = f"; and {len(words) - TOLD} more" if len(words) > TOLD else ""
    return "; ".join(words[:TOLD]) + more


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, in which a field may stand once: of two, the reader would drop one in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the field {twice!r} stands twice in an object")
    return found


def _word_of(error: Mapping[str, Any]) -> str:
    """Return what pydantic found, in words that know nothing of Python."""
    words: str = error["msg"].removeprefix("Value error, ")
    return _WORDS.get(error["type"], shortened(words, LONGEST))
