"""A recording that records nothing: what the core does where the environment asks a guest for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_compress.services.base import Service
from hvd_compress.settings import Recording


class Recorded(Recording):
    """Nothing is to be chosen by measurement meanwhile."""

    variable = "HVD_COMPRESS_RECORDED"
    adapts = False

    @property
    def written(self) -> tuple[Path, Path]:
        return Path("unused"), Path("unused")

    def recorder(self, handle: Any, request: Any, settings: Any) -> Service:
        return Service()
