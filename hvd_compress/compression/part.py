"""Base of the parts of `Compression`, whose functions refuse what Request.by() takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from hvd_compress.compressors import Compressor
from hvd_compress.engines.names import ALGORITHMS, ALLGATHERS
from hvd_compress.errors import MovedArgumentError
from hvd_compress.request.request import WORDS, Request

P = ParamSpec("P")
EARLIER = {"scheme": "collective"}
"""Names that earlier versions had for what by() takes."""


class Part:
    """Each static method of a subclass is a function of `Compression`, which says where its earlier arguments are."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, function in [*vars(cls).items()]:
            if isinstance(function, staticmethod):
                setattr(cls, name, staticmethod(says_by(f"Compression.{name}")(function.__func__)))


def of_class(name: str, kind: type[Compressor]) -> Callable[..., Request]:
    """Return the function of `Compression` for a compressor that has none of its own: its settings are those of it."""

    def function(*args: Any, **settings: Any) -> Request:
        return Request(kind(*args, **settings))

    function.__name__, function.__qualname__, function.__doc__ = name, f"Compression.{name}", kind.__doc__
    function.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return says_by(function.__qualname__)(function)


def says_by(called: str) -> Callable[[Callable[P, Request]], Callable[P, Request]]:
    """Return a decorator of what returns a request: given an argument of by(), it raises how that is written.

    Raises:
        MovedArgumentError: from what is decorated; collective and algorithm were positional, too.
    """

    def decorated(function: Callable[P, Request]) -> Callable[P, Request]:
        own = inspect.signature(function).parameters
        places = [each for each in own.values() if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        is_method = "self" in own

        @functools.wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> Request:
            named = [word for word in given if word not in own and EARLIER.get(word, word) in WORDS]
            moved = {EARLIER.get(word, word): given[word] for word in named} | _by_place(args[len(places) :])
            if moved:
                others = "..." if args[is_method : len(places)] or len(given) > len(named) else ""
                said = ", ".join(f"{word}={_quoted(moved[word])}" for word in WORDS if word in moved)
                raise MovedArgumentError(
                    f"{called}() has no argument {' and '.join(named) or 'for a collective or algorithm'}: .by() takes "
                    f"that of every compression, so write {called}({others}).by({said})"
                )
            return function(*args, **given)

        return checked

    return decorated


def _by_place(values: tuple[Any, ...]) -> dict[str, Any]:
    """Return what positional arguments meant of which a function has too many."""
    moved: dict[str, Any] = {}
    for value in values if all(isinstance(each, str) for each in values) else ():
        moved["algorithm" if moved or value in (*ALGORITHMS, *ALLGATHERS) else "collective"] = value
    return moved


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
