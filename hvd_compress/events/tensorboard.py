"""What is known of buckets, as scalars for TensorBoard."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

from hvd_compress.errors import ConfigError
from hvd_compress.events.history import Event
from hvd_compress.extras import needed

SCALARS = ("ratio", "gain", "measured_s", "predicted_s", "wire_ratio")
CHOSEN = {
    ("ratio", "ratio"): "chosen_ratio",
    ("ratio", "gain"): "expected_gain",
}
"""Tags of what is chosen and may not be sent: no compression may be faster, another collective sends another ratio."""
REASONED = ("choice", "ratio", "root", "network", "ccr")
"""The kinds of events whose reasons stand under Text."""
FLUSH_S = 10
"""How much a job that is killed may lose."""


class TensorBoard:
    """Writes each event of a history to a folder: a tag for each figure and bucket.

    `hvd_compress/wait_s` and all else that Handle.metrics() says; `bucket 0/ratio`, `bucket 0/measured_s`, ...;
    and under Text `bucket 0/choice`, `network/network` and so on, with the reason. A rollout was taken back, and is
    left out. A ratio that is chosen, and what it is expected to gain, are not what is sent: they have tags of their
    own, `chosen_ratio` and `expected_gain`.

    Where nothing more can be written (a full disk), a warning says so, and the training goes on without it.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError where the folder cannot be written, MissingPackageError where tensorboard is missing."""
        with needed("tensorboard", "HVD_COMPRESS_TENSORBOARD"):
            from torch.utils.tensorboard import SummaryWriter
        try:
            self._folder, self._ended = folder, False
            self._writer = SummaryWriter(str(folder), flush_secs=FLUSH_S)
        except OSError as error:
            raise ConfigError(f"HVD_COMPRESS_TENSORBOARD: cannot write {folder}: {error.strerror}") from None

    def __call__(self, event: Event) -> None:
        """Add what is known of an event at its step."""
        if self._ended or event.kind == "rollout":
            return
        try:
            self._add(event)
        except Exception as error:  # TensorFlow's are no OSErrors; on one rank alone: the others go on
            self._end(error)

    def close(self) -> None:
        """Write what is left."""
        if self._ended:
            return
        try:
            self._writer.close()
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._ended = True
        warnings.warn(f"HVD_COMPRESS_TENSORBOARD: {self._folder} ends here: {error}", RuntimeWarning, stacklevel=3)

    def _add(self, event: Event) -> None:
        for name, figure in event.figures.items():
            self._writer.add_scalar(f"hvd_compress/{name}", figure, event.step)
        place = f"bucket {event.bucket}" if event.bucket >= 0 else "network"
        for name in SCALARS:
            value = getattr(event, name)
            if math.isfinite(value):
                self._writer.add_scalar(f"{place}/{CHOSEN.get((event.kind, name), name)}", value, event.step)
        if event.kind in REASONED:
            words = f"{event.candidate}: {event.reason}" if event.candidate else event.reason
            self._writer.add_text(f"{place}/{event.kind}", words, event.step)
