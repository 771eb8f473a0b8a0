"""Is it a compression that was passed?"""

from __future__ import annotations

import inspect
from typing import Any

from hvd_compress.errors import ConfigError
from hvd_compress.request.request import Request


def check_request(asked: Any) -> None:
    """Raise ConfigError for what no function of Compression returns."""
    if isinstance(asked, Request):
        return
    if inspect.isfunction(asked):
        called = f"Compression.{asked.__name__}"
        raise ConfigError(f"{called} is a function: call it, as in {called}()")
    raise ConfigError(
        f"{asked!r} is no compression: pass what a function of Compression returns, as topk(0.01) or "
        "of(compressor) does"
    )
