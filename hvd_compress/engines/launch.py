"""How a collective is launched that is no bucket's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hvd_compress.engines.base import Engine

T = TypeVar("T")


class Launch(Protocol):
    """Runs a collective behind all that was launched before; call what is returned to wait for its result.

    `label` says in messages what it is for, and `measuring_s` how long it may measure, beside what ranks may let each
    other wait. Every rank calls this at the same place.
    """

    def __call__(self, call: Callable[[Engine], T], label: str, measuring_s: float = 0.0) -> Callable[[], T]: ...
