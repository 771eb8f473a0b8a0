"""What torch.compile leaves to Python: exchanges, and the hooks that begin them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch._compile import _disable_dynamo

P = ParamSpec("P")
T = TypeVar("T")


def eagerly(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function, and all that it calls, run as it is where a compiled program calls it.

    As torch.compiler.disable, which would import the compiler together with this package, for seconds.
    """
    return _disable_dynamo(function)
