"""Whether a network lab can be made here, which takes Linux and its administrator."""

from __future__ import annotations

import pytest

from hvd_compress.errors import UnsupportedError
from hvd_compress.netlab import Lab


def require_lab() -> None:
    """Skip the test where none can be made, and say why."""
    try:
        Lab(1, "1ms", "1gbit").close()
    except UnsupportedError as error:
        pytest.skip(f"no network lab can be made here: {error}")
