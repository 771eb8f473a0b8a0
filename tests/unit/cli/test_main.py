"""The command line itself."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hvd_compress import __version__
from hvd_compress.cli.main import COMMANDS, main


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, summary in COMMANDS.items():
        assert name in result.output
        assert summary in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported(name: str) -> None:
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_version() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_unknown_command_is_named() -> None:
    result = CliRunner().invoke(main, ["docter"])
    assert result.exit_code == 2
    assert "docter" in result.output
