"""What the environment asks to be recorded, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.compression import Compression
from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso.profiler.job import JobProfile
from hvd_compress.papers.espresso.profiler.settings import CcrSettings, ProfileSettings
from hvd_compress.settings import Settings
from tests.harness import make_parameters


def test_a_profile_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_PROFILE_STEPS", "7")
    assert Settings.from_environment().recordings == ()
    monkeypatch.setenv("HVD_COMPRESS_PROFILE", "profile")
    assert Settings.from_environment().recordings == (ProfileSettings(Path("profile"), 7, 10, ""),)
    monkeypatch.setenv("HVD_COMPRESS_PROFILE_SKIP", "0")
    monkeypatch.setenv("HVD_COMPRESS_PROFILE_COMPRESSOR", "topk:ratio=0.1")
    assert Settings.from_environment().recordings == (ProfileSettings(Path("profile"), 7, 0, "topk:ratio=0.1"),)


def test_a_ratio_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CCR", " found.json ")
    assert Settings.from_environment().recordings == (CcrSettings(Path("found.json"), 3, 10),)
    monkeypatch.setenv("HVD_COMPRESS_CCR_STEPS", "7")
    monkeypatch.setenv("HVD_COMPRESS_CCR_SKIP", "0")
    assert Settings.from_environment().recordings == (CcrSettings(Path("found.json"), 7, 0),)


@pytest.mark.parametrize("asked", ["PROFILE", "CCR"])
@pytest.mark.parametrize(
    ("name", "value"), [("STEPS", "0"), ("STEPS", "many"), ("STEPS", "1e19"), ("SKIP", "1e300"), ("SKIP", "-1")]
)
def test_bad_values_name_the_variable(monkeypatch: pytest.MonkeyPatch, asked: str, name: str, value: str) -> None:
    monkeypatch.setenv(f"HVD_COMPRESS_{asked}", "profile")
    monkeypatch.setenv(f"HVD_COMPRESS_{asked}_{name}", value)
    with pytest.raises(ConfigError, match=f"HVD_COMPRESS_{asked}_{name}"):
        Settings.from_environment()


@pytest.mark.parametrize("kind", [ProfileSettings, CcrSettings])
def test_a_name_that_is_too_long_is_a_hindrance(kind: type[ProfileSettings | CcrSettings], tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    settings = replace(Settings(), recordings=(kind(path),))
    assert f"cannot write {kind.variable} = {path} (File name too long)" in settings.obstacle(0)
    assert not settings.obstacle(1)


def test_what_a_job_profiles_has_a_compressors_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_PROFILE", str(tmp_path))
    monkeypatch.setenv("HVD_COMPRESS_PROFILE_COMPRESSOR", "int4:block=128")
    profile = JobProfile(make_parameters(), ProfileSettings.from_environment(), Compression.dense(), 1.0)
    profile.close()
    assert str(Compression.int4(block=128).compressor) in profile.fingerprint()["HVD_COMPRESS_PROFILE"]
