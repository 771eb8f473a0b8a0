"""hvd-compress netlab: what is refused, in one sentence, before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.errors import UnsupportedError
from hvd_compress.netlab import Lab, places, relay

LINE = ["--latency", "1ms", "--bandwidth", "1gbit"]


def refused(*words: str) -> str:
    result = CliRunner().invoke(main, ["netlab", *words])
    assert result.exit_code == 2, result.output
    return result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--latency", "4", "--bandwidth", "1gbit"], "latency '4' has no unit"),
        (["--latency", "-4ms", "--bandwidth", "1gbit"], "latency '-4ms' must be a finite number"),
        (["--latency", "4ms", "--bandwidth", "100"], "bandwidth '100' has no unit"),
        ([*LINE, "--hosts", "0"], "hosts = 0 is not a whole number, 1 to 64"),
        ([*LINE, "--hosts", "65"], "hosts = 65 is not a whole number, 1 to 64"),
        ([*LINE, "--slots", "0"], "slots = 0 is not a whole number, 1 or more"),
        ([*LINE, "--name", "a/b"], "is no name for a lab"),
        (["--latency", "4ms"], "give --latency and --bandwidth"),
        ([*LINE, "--schedule", "c1", "--epoch-s", "1"], "takes the place"),
        (["--schedule", "c1"], "--epoch-s"),
        (["--schedule", "nowhere"], "cannot read the schedule"),
    ],
)
def test_a_run_that_cannot_be(words: list[str], message: str) -> None:
    assert message in refused("run", *words, "--", "true")


def test_set_wants_something_to_set() -> None:
    assert "give --latency, --bandwidth, or both" in refused("set")


@pytest.mark.parametrize(
    ("words", "message"), [([], "no lab runs here"), (["--lab", "nobody"], "there is no lab 'nobody'")]
)
def test_set_without_a_lab(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "FOLDER", tmp_path)
    assert message in refused("set", "--latency", "4ms", *words)


def test_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "run it as root" in refused("run", *LINE, "--", "true")


def test_without_the_relay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Told before rights are: root would not help."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(relay, "PROGRAM", tmp_path / "netlab_relay")
    told = refused("run", *LINE, "--", "true")
    for words in ("netlab_relay is missing", "built without it", "HVD_COMPRESS_RELAY=0"):
        assert words in told
    with pytest.raises(UnsupportedError, match="the relay of the network lab"):
        Lab(2, "1ms", "1mbit")


def test_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert "runs on Linux alone" in refused("run", *LINE, "--", "true")


def test_what_a_dead_lab_left_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "FOLDER", tmp_path)
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "old.socket"))
    assert places.running() == []
    assert list(tmp_path.iterdir()) == []
