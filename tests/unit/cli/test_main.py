"""The command line itself."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hvd_compress import __version__
from hvd_compress.cli import choose
from hvd_compress.cli.main import COMMANDS, main
from hvd_compress.errors import ConfigError
from tests.brought import brought


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, summary in COMMANDS.items():
        assert name in result.output
        assert summary in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported(name: str) -> None:
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("group", ["plan", *brought("GROUPS")])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_of_a_group_is_not_cut_short(group: str, columns: int) -> None:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [group, "--help"], terminal_width=columns)
    commands = result.output.partition("Commands:")[2]
    assert commands.strip()
    assert "..." not in commands


@pytest.mark.parametrize("words", brought("PICTURES"))
def test_help_says_what_pictures_need(words: str) -> None:
    said = " ".join(CliRunner().invoke(main, [*words.split(), "--help"]).output.split())
    assert "need matplotlib: pip install 'hvd_compress[plot]'" in said


def test_version() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_unknown_command_is_named() -> None:
    result = CliRunner().invoke(main, ["docter"])
    assert result.exit_code == 2
    assert "docter" in result.output


CHOOSE = ["choose", "--numel", "1M", "--ratio", "1%", "--world-size", "4", "--latency", "1ms", "--bandwidth", "1gbit"]


def test_an_error_of_ours_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("the compiled kernels cannot be loaded")

    monkeypatch.setattr(choose, "predict", refuse)
    result = CliRunner().invoke(main, CHOOSE)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "Error: the compiled kernels cannot be loaded"
    assert "Traceback" not in result.output


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "predict", lambda *_, **__: 1 // 0)
    assert isinstance(CliRunner().invoke(main, CHOOSE).exception, ZeroDivisionError)
