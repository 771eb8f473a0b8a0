"""Guests can be taken away: the core knows them by one table of words."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress import guests
from hvd_compress.cli.main import main
from hvd_compress.compression import Compression
from hvd_compress.guests import GUESTS
from tools.imports import imports_of

ROOT = Path(__file__).parents[2]
HERE = [guest for guest in GUESTS if guest.is_here]
FOLDERS = [guest.folder for guest in HERE]
OF_ALL = ("tests/benchmarks/", "tests/checkpoints/", "tests/unit/docs/")
"""What tests scripts of benchmarks/, pages of docs/ and files of earlier versions needs what these show."""


def is_of(file: Path, folder: str) -> bool:
    return file.is_relative_to(ROOT / "hvd_compress" / folder) or file.is_relative_to(ROOT / "tests" / folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_else_imports_a_guest(folder: str) -> None:
    inside = tuple(f"{place}.{folder.replace('/', '.')}" for place in ("hvd_compress", "tests"))
    for file in [*(ROOT / "hvd_compress").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        if not is_of(file, folder) and not file.relative_to(ROOT).as_posix().startswith(OF_ALL):
            for each in imports_of(ast.parse(file.read_text())):
                names = (each.module, f"{each.module}.{each.name}")
                assert not any(f"{name}.".startswith(f"{place}.") for name in names for place in inside), file


def test_the_table_names_what_is_there() -> None:
    for guest in HERE:
        for words, does in guest.commands.items():
            assert guests.command(words).help
            *group, _ = words.split()
            said = " ".join(CliRunner().invoke(main, [*group, "--help"], terminal_width=200).output.split())
            assert does in said, words
        for name in guest.compressions:
            assert getattr(Compression, name).__doc__
        for name in guest.names:
            assert guests.attribute("hvd_compress.ddp", name).__name__ == name
        for mark, place in guest.schemes.items():
            assert guests.scheme(mark).__name__ == place.partition(":")[2]


ALONE = "import sys; sys.meta_path = [each for each in sys.meta_path if 'editable' not in each.__module__]"
"""The checkout that is installed would be found for what is missing."""


def left(folder: Path) -> Path:
    """Make a checkout without guests and their tests: links to this one. Return its path."""
    for name in ("hvd_compress", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, copy_function=os.symlink)
        for guest in FOLDERS:
            shutil.rmtree(folder / name / guest)
    for path in ROOT.iterdir():
        if not (folder / path.name).exists() and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    (folder / "alone.py").write_text(ALONE)
    return folder


CORE = ("tests/unit/cli", "tests/unit/compression", "tests/unit/test_guests.py")
"""Tests of what reads the table, and of what names compressions."""
RUN = "import sys; sys.path.insert(0, ''); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
COMMAND = "import sys; sys.path.insert(0, ''); import alone; from hvd_compress.cli.main import main; main()"


def run(place: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", program, *words]
    return subprocess.run(call, cwd=place, capture_output=True, text=True, check=False)


@pytest.mark.level2
def test_the_core_does_without(tmp_path: Path) -> None:
    place = left(tmp_path / "left")
    done = run(place, RUN, "-q", "-x", "-n", "2", "-p", "no:cacheprovider", "-p", "alone", "-m", "not level2", *CORE)
    assert done.returncode == 0, done.stdout[-3000:]
    for guest in HERE:
        for words, does in guest.commands.items():
            *group, _ = words.split()
            assert does not in run(place, COMMAND, *group, "--help").stdout
            asked = run(place, COMMAND, *words.split())
            assert asked.returncode == 2
            assert f"comes with hvd_compress/{guest.folder}, which is not part" in asked.stderr
    assert run(place, "import alone; from hvd_compress.ddp import *; assert 'compress' in dir()").returncode == 0
    for guest in HERE:
        for name in guest.compressions:
            told = run(place, f"import alone; from hvd_compress.compression import Compression; Compression.{name}")
            assert f"Compression.{name}() comes with hvd_compress/{guest.folder}, which is not part" in told.stderr
