"""What the tests of embedding tables bring to those of the core."""

from __future__ import annotations

ALLOWED = {
    "embedding": {
        "embedding",
        "engines.base",
        "engines.leave",
        "engines.select",
        "engines.torch_timeout",
        "errors",
        "frontends.horovod.runtime_selection",
        "native.module",
        "session.worker",
        "settings",
        "warned",
    }
}
"""What the modules of this guest may import of the package."""
