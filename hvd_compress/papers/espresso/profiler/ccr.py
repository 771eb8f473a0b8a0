"""Writes the communication-to-computation ratio of a job, for `hvd-compress profile --ccr`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvd_compress.engines.base import Engine
from hvd_compress.errors import UnsupportedError
from hvd_compress.frontends.recorded import release
from hvd_compress.papers.espresso.profiler.settings import CcrSettings
from hvd_compress.services.base import Service
from hvd_compress.session.session import Session

log = logging.getLogger("hvd_compress")


class CcrRecorder(Service):
    """Has the ratio profiled after some steps, unless the program does, and writes what is found first."""

    def __init__(self, session: Session, settings: CcrSettings) -> None:
        """Raises UnsupportedError where the model has no one clock."""
        if obstacle := session.services.ccr.obstacle:
            raise UnsupportedError(obstacle)
        self._session, self._settings = session, settings
        self._before = session.services.ccr.found
        self._count, self._writes, self._is_over = 0, False, False
        self._ask()

    def fingerprint(self) -> Mapping[str, str]:
        return {"HVD_COMPRESS_CCR": f"{self._settings.skip} + {self._settings.steps} steps"}

    def met(self, engine: Engine) -> None:
        self._writes = engine.rank == 0

    def ended(self) -> None:
        self._count += 1
        found, before = self._session.services.ccr.found, self._before
        self._before = found
        if self._is_over:
            return
        if found is None or found is before or self._count < self._settings.skip:
            self._ask()
            return
        self._is_over = True
        if self._writes:
            step = self._session.step - 1
            _write(self._settings.file, {**asdict(found), "ratio": found.ratio, "naive": found.naive, "step": step})

    def _ask(self) -> None:
        """Have the steps profiled that begin after the next one, if that is the last one before them."""
        if self._count + 1 >= self._settings.skip and not self._session.services.ccr.asked:
            self._session.services.ccr.ask(self._settings.steps)

    def failed(self) -> None:
        self.close()  # another optimizer may be recorded

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            release()


def _write(path: Path, figures: Mapping[str, Any]) -> None:
    """Write a file at once. Where that cannot be, training goes on: other ranks wait for this one."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.write_text(json.dumps(figures))
        draft.replace(path)
    except OSError as error:
        log.warning("hvd_compress: cannot write HVD_COMPRESS_CCR = %s: %s", path, error.strerror)
