"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Machines are noisy, so no example may fail for being slow; ranks must draw the same examples.
settings.register_profile("hvd_compress", deadline=None, derandomize=True)
settings.load_profile("hvd_compress")
