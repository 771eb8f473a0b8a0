"""What records the steps of a session: a guest's, where the environment asks for it (`settings.Recording`)."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch


class StepRecorder:
    """Sees each step of a session, the same on all ranks.

    Attributes:
        holds_back: whether buckets are to be handed over when the backward pass is over: an exchange at the same time
            would take the cores and the memory that are measured.
    """

    holds_back: bool = False

    def fingerprint(self) -> Mapping[str, str]:
        """Return what must be equal on all ranks, in words."""
        return {}

    def prepare(self, engine: Engine) -> None:
        """Ranks have shaken hands, perhaps again. Collective.

        Raises UnsupportedError, ConfigError, on all ranks alike, where nothing can be recorded.
        """

    def end_step(self, launch: Launch) -> None:
        """A step is over, and its results are there: what fails here is logged, and raised by the next exchange."""

    def close(self) -> None:
        """Record no more."""
