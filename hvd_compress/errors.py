"""The errors that hvd_compress raises, and the context that every one of them carries."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "CommunicationError",
    "ConfigError",
    "HvdCompressError",
    "JobEndedError",
    "JournalError",
    "MismatchError",
    "MissingPackageError",
    "PayloadError",
    "PlanError",
    "RanksDifferError",
    "ReplicaError",
    "UnsupportedError",
    "UsageError",
]

LONGEST = 2500
"""Characters of what a command prints of an error, which may quote a file."""
_CUT = " ... "


class HvdCompressError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(HvdCompressError, ValueError):
    """A setting is wrong, or differs between ranks. Raised before anything is communicated with it."""


class UnknownCompressionError(ConfigError, AttributeError):
    """`Compression` has nothing of this name."""


class MovedArgumentError(ConfigError, TypeError):
    """A function of `Compression` was given what Request.by() takes. The message has the call as it is written."""


class PlanError(ConfigError):
    """A plan is no plan, or does not fit the model or the job. The message names the differences."""


class MissingPackageError(ConfigError, ImportError):
    """An optional package is missing or cannot be imported. The message names the extra that brings it (extras.py)."""


class MismatchError(ConfigError):
    """Tensors of a call do not fit each other: an index lies outside, or lengths differ.

    A kernel cannot know where its arguments come from. Who passes on what another rank sent does so within received().
    """


class JobEndedError(HvdCompressError, RuntimeError):
    """The job goes on without this process, or not at all: nothing is exchanged any more."""


class UnsupportedError(HvdCompressError, NotImplementedError):
    """Something valid was asked of a part that cannot do it (an engine, a device, a dtype)."""


class UsageError(HvdCompressError, RuntimeError):
    """Calls came in an order that has no meaning, such as a second backward pass before step()."""


class NotInitializedError(UsageError, ValueError):
    """hvd.init() comes first: a ValueError, as of Horovod."""


class PayloadError(HvdCompressError, ValueError):
    """Bytes that came from another rank are not a valid payload."""


class JournalError(HvdCompressError, OSError):
    """A journal of embedding rows cannot be written, or what is read is none. The message names the file."""


class ReplicaError(HvdCompressError, RuntimeError):
    """Replicas are not equal any more: each rank trains a model of its own. The message names rank and parameter."""


class CommunicationError(HvdCompressError, RuntimeError):
    """A collective failed, or another rank did not answer in time."""


class RanksDifferError(ConfigError, CommunicationError):
    """Ranks want different things of a collective that they call alike. The message has both sides."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?", the end of an error, where a name is nearly one that is known; else nothing."""
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""


def known_are(known: Iterable[str], name: object, where: str = "") -> str:
    """Return "; known are A, B", the end of an error about a name that is none of them, and which one was meant."""
    names = tuple(known)
    return f"; known{where} are {', '.join(names)}{did_you_mean(name, names)}"


def shortened(words: str, longest: int = LONGEST) -> str:
    """Return words without their middle where they are longer than that many characters, as where they quote a file."""
    half = (longest - len(_CUT)) // 2
    return words if len(words) <= longest else f"{words[:half]}{_CUT}{words[-half:]}"


@contextmanager
def received() -> Iterator[None]:
    """What arrived from another rank is used in the block: if it does not fit, that is a PayloadError."""
    try:
        yield
    except MismatchError as error:
        raise PayloadError(str(error)) from error


@contextmanager
def located(where: str | Callable[[], str]) -> Iterator[None]:
    """Prefix every error that leaves the block with `where` (rank, bucket, step, collective).

    A function is asked when the error rises, for what is known only then. Our own errors keep their type; anything
    else becomes a CommunicationError with the original as its cause.
    """
    try:
        yield
    except Exception as error:
        place = where if isinstance(where, str) else where()
        if isinstance(error, HvdCompressError):
            raise type(error)(f"{place}: {error}") from error
        raise CommunicationError(f"{place}: {type(error).__name__}: {error}") from error
