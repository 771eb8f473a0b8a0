from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.settings import Settings

NAMES = (
    "HOROVOD_FUSION_THRESHOLD",
    *(f"HVD_COMPRESS_{n}" for n in ("TIMEOUT_S", "ADAPT", "CALIBRATION_S", "LOG")),
    *(f"HVD_COMPRESS_{n}" for n in ("TIMELINE", "TIMELINE_EVERY", "TENSORBOARD")),
    *(f"HVD_COMPRESS_PROFILE{n}" for n in ("", "_STEPS", "_SKIP", "_COMPRESSOR")),
)


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    assert Settings.from_environment() == Settings(
        64 * 2**20, 300.0, adapt=True, calibration_s=3.0, log=None, cuts=True
    )


def test_the_environment_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1024")
    monkeypatch.setenv("HVD_COMPRESS_TIMEOUT_S", "2.5")
    monkeypatch.setenv("HVD_COMPRESS_ADAPT", "0")
    monkeypatch.setenv("HVD_COMPRESS_CALIBRATION_S", "0.5")
    monkeypatch.setenv("HVD_COMPRESS_LOG", "logs/choices.jsonl")
    monkeypatch.setenv("HVD_COMPRESS_TIMELINE", "trace-{rank}.json")
    monkeypatch.setenv("HVD_COMPRESS_TIMELINE_EVERY", "5")
    monkeypatch.setenv("HVD_COMPRESS_TENSORBOARD", "runs")
    files = Path("logs/choices.jsonl"), Path("trace-{rank}.json"), 5, Path("runs")
    settings = Settings.from_environment()
    assert settings == Settings(1024, 2.5, False, 0.5, *files)
    assert settings.timeline_of(3) == Path("trace-3.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_FUSION_THRESHOLD", "1.5"),
        ("HVD_COMPRESS_TIMEOUT_S", "0"),
        ("HVD_COMPRESS_TIMEOUT_S", "nan"),
        ("HVD_COMPRESS_TIMEOUT_S", "inf"),
        ("HVD_COMPRESS_ADAPT", "yes"),
        ("HVD_COMPRESS_CALIBRATION_S", "-1"),
        ("HVD_COMPRESS_TIMELINE_EVERY", "0"),
        ("HVD_COMPRESS_TIMELINE_EVERY", "2.5"),
        ("HVD_COMPRESS_TIMELINE_EVERY", "1e19"),
    ],
)
def test_bad_values_name_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        Settings.from_environment()


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("ADAPT", "Off", "0"),
        ("ADAPT", "true", "1"),
        ("TIMEOUT_S", "5ms", "0.005"),
        ("TIMEOUT_S", "300 s", "300"),
        ("TIMEOUT_S", "1,800", "1800"),
        ("TIMELINE_EVERY", "1'000", "1000"),
        ("CHECK_EVERY", "10,000,000", "10000000"),
        ("ADAPT", "2", None),
        ("TIMEOUT_S", "long", None),
        ("TIMEOUT_S", "1,5", None),
        ("TIMELINE_EVERY", "5ms", None),
        ("IN_FLIGHT", "0", None),
        ("IN_FLIGHT", "1.5", None),
        ("IN_FLIGHT", "9", None),
        ("HOROVOD_NICENESS", "20", None),
        ("HOROVOD_NICENESS", "-1", None),
    ],
)
def test_a_value_that_is_nearly_one_says_which(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, meant: str | None
) -> None:
    monkeypatch.setenv(f"HVD_COMPRESS_{name}", value)
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment()
    assert str(caught.value).partition("did you mean ")[2] == (f"{meant}?" if meant else "")


def test_what_is_no_number_brings_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_TIMEOUT_S", "abc")
    with pytest.raises(ConfigError, match="HVD_COMPRESS_TIMEOUT_S = 'abc' is not a number, such as 300"):
        Settings.from_environment()


def test_a_whole_number_brings_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "64MB")
    with pytest.raises(ConfigError, match="such as 67108864"):
        Settings.from_environment()


@pytest.mark.parametrize("name", ["timeline", "log", "tensorboard"])
def test_a_name_that_is_too_long_is_a_hindrance(name: str, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    told = Settings(**{name: path}).obstacle(0)
    assert f"cannot write HVD_COMPRESS_{name.upper()} = {path} (File name too long)" in told


def test_a_tensorboard_that_does_not_work_is_a_hindrance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    told = Settings(tensorboard=tmp_path).obstacle(0)
    assert "has no tensorboard that works" in told
    assert "pip install 'hvd_compress[tensorboard]'" in told


def test_a_misspelt_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_TIMEOUT", "600")
    with pytest.warns(UserWarning, match=r"HVD_COMPRESS_TIMEOUT is no .* did you mean HVD_COMPRESS_TIMEOUT_S\?"):
        assert Settings.from_environment().timeout_s == 300.0


def test_a_name_like_no_other_brings_the_list_of_those_that_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_XYZZY", "1")
    with pytest.warns(UserWarning, match=r"known are HVD_COMPRESS_\{ADAPT, ") as caught:
        Settings.from_environment()
    assert "WERROR" not in str(caught[0].message)


def test_a_timeout_of_for_ever_is_the_longest_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_TIMEOUT_S", "1e12")
    assert Settings.from_environment().timeout_s == threading.TIMEOUT_MAX
