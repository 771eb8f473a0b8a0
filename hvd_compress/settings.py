"""What is read from the environment, in one place, once for each optimizer."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hvd_compress.errors import ConfigError

DEFAULT_FUSION_THRESHOLD_BYTES = 64 * 1024 * 1024
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Settings:
    """The environment's settings.

    Attributes:
        fusion_threshold_bytes: HOROVOD_FUSION_THRESHOLD, the size of a bucket; 0 gives every parameter its own.
        timeout_s: HVD_COMPRESS_TIMEOUT_S, how long a step waits for other ranks before it fails.
    """

    fusion_threshold_bytes: int = DEFAULT_FUSION_THRESHOLD_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S

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
        return cls(int(threshold), timeout_s)


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
