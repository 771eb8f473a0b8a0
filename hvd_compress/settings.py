"""What is read from the environment, in one place, once for each optimizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hvd_compress.errors import ConfigError

DEFAULT_FUSION_THRESHOLD_BYTES = 64 * 1024 * 1024
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_CALIBRATION_S = 3.0


@dataclass(frozen=True)
class Settings:
    """The environment's settings.

    Attributes:
        fusion_threshold_bytes: HOROVOD_FUSION_THRESHOLD, the size of a bucket; 0 gives every parameter its own.
        timeout_s: HVD_COMPRESS_TIMEOUT_S, how long a step waits for other ranks before it fails.
        adapt: HVD_COMPRESS_ADAPT, whether scheme="auto" chooses by measurement, while training runs; if not, by a
            formula, once, so that two runs send the same.
        calibration_s: HVD_COMPRESS_CALIBRATION_S, how long it may measure the network before the first choice, about.
        log: HVD_COMPRESS_LOG, the file for what is chosen and why, as lines of JSON; written by rank 0.
    """

    fusion_threshold_bytes: int = DEFAULT_FUSION_THRESHOLD_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S
    adapt: bool = False
    calibration_s: float = DEFAULT_CALIBRATION_S
    log: Path | None = None

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables.

        Raises:
            ConfigError: a variable is not a number of the right kind.
        """
        threshold = _number("HOROVOD_FUSION_THRESHOLD", DEFAULT_FUSION_THRESHOLD_BYTES)
        timeout_s = _number("HVD_COMPRESS_TIMEOUT_S", DEFAULT_TIMEOUT_S)
        if threshold < 0 or threshold != int(threshold):
            raise ConfigError(f"HOROVOD_FUSION_THRESHOLD = {threshold} is not a number of bytes, 0 or more")
        if timeout_s <= 0:
            raise ConfigError(f"HVD_COMPRESS_TIMEOUT_S = {timeout_s} is not a time in seconds, above 0")
        adapt = os.environ.get("HVD_COMPRESS_ADAPT", "").strip() or "1"
        if adapt not in ("0", "1"):
            raise ConfigError(f"HVD_COMPRESS_ADAPT = {adapt!r} is neither 0 nor 1")
        log = os.environ.get("HVD_COMPRESS_LOG", "").strip()
        calibration_s = _number("HVD_COMPRESS_CALIBRATION_S", DEFAULT_CALIBRATION_S)
        if calibration_s < 0:
            raise ConfigError(f"HVD_COMPRESS_CALIBRATION_S = {calibration_s} is not a time in seconds, 0 or more")
        return cls(int(threshold), timeout_s, adapt == "1", calibration_s, Path(log) if log else None)


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ConfigError(f"{name} = {text!r} is not a number")
    return value
