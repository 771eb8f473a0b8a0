"""Which labs run here, seen from the sockets that they leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_compress.errors import CommunicationError, ConfigError
from hvd_compress.netlab import places


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "FOLDER", tmp_path)
    monkeypatch.delenv(places.NAME_VARIABLE, raising=False)
    for name in ("dead", "ending", "running"):
        places.socket_of(name).touch()

    def ask(name: str, order: str) -> str:
        if name == "dead":
            raise ConfigError("there is no lab 'dead'")
        if name == "ending":
            raise CommunicationError("does not answer")
        return ""

    monkeypatch.setattr(places, "ask", ask)
    return tmp_path


def test_what_a_dead_lab_left_is_removed_and_one_that_is_ending_does_not_matter(folder: Path) -> None:
    assert places.running() == ["running"]
    assert sorted(path.stem for path in folder.iterdir()) == ["ending", "running"]
    assert places.find(None) == "running"


def test_who_may_not_look_is_told_so_and_not_that_there_is_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="only root may see and change labs"):
        places.find("running")
