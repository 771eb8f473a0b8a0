from __future__ import annotations

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.settings import Settings


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)
    monkeypatch.delenv("HVD_COMPRESS_TIMEOUT_S", raising=False)
    assert Settings.from_environment() == Settings(64 * 2**20, 300.0)


def test_the_environment_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1024")
    monkeypatch.setenv("HVD_COMPRESS_TIMEOUT_S", "2.5")
    assert Settings.from_environment() == Settings(1024, 2.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_FUSION_THRESHOLD", "1.5"),
        ("HVD_COMPRESS_TIMEOUT_S", "0"),
        ("HVD_COMPRESS_TIMEOUT_S", "nan"),
        ("HVD_COMPRESS_TIMEOUT_S", "inf"),
    ],
)
def test_bad_values_name_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        Settings.from_environment()
