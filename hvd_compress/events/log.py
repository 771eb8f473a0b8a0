"""Events as lines of JSON."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from hvd_compress.errors import ConfigError
from hvd_compress.events.history import Event


class Log:
    """Writes each event to a file, as soon as it happens.

    Where the file can no longer be written (a full disk), a warning says so, and the training goes on without it.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be written."""
        self._path: Path | None = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        except OSError as error:
            raise ConfigError(f"HVD_COMPRESS_LOG: cannot write {path}: {error.strerror}") from None

    def __call__(self, event: Event) -> None:
        """Add a line."""
        if self._path is None:
            return
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(event.to_json()) + "\n")
        except OSError as error:  # on one rank alone: the others go on
            path, self._path = self._path, None
            warnings.warn(f"HVD_COMPRESS_LOG: {path} ends here: {error}", RuntimeWarning, stacklevel=3)
