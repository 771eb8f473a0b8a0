"""Logs of runs, as events."""

from __future__ import annotations

import json
from pathlib import Path

from hvd_compress.events.history import Event


def events_of(log: Path) -> list[Event]:
    """Return what a file that HVD_COMPRESS_LOG named holds."""
    return [Event(**json.loads(line)) for line in log.read_text().splitlines()]
