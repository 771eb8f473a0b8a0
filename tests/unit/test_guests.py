"""Guests can be taken away: the core knows them by one table of words."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress import collectives, compressors, guests
from hvd_compress.cli.main import main
from hvd_compress.compression import Compression
from hvd_compress.compression.named import compressor_named
from hvd_compress.compressors import COMPRESSORS, TopK
from hvd_compress.errors import ConfigError, UnknownCompressionError
from hvd_compress.guests import GUESTS
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tools.imports import Import, imports_of

ROOT = Path(__file__).parents[2]
HERE = [guest for guest in GUESTS if guest.is_here]
FOLDERS = [guest.folder for guest in HERE]
OF_ALL = ("tests/benchmarks/", "tests/checkpoints/", "tests/unit/docs/")
"""What tests scripts of benchmarks/, pages of docs/ and files of earlier versions needs what these show."""


def is_of(file: Path, folder: str) -> bool:
    return file.is_relative_to(ROOT / "hvd_compress" / folder) or file.is_relative_to(ROOT / "tests" / folder)


@cache
def imports_in(file: Path) -> tuple[Import, ...]:
    return tuple(imports_of(ast.parse(file.read_text())))


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_else_imports_a_guest(folder: str) -> None:
    classes = next(guest.classes for guest in HERE if guest.folder == folder)
    inside = tuple(f"{place}.{folder.replace('/', '.')}" for place in ("hvd_compress", "tests"))
    for file in [*(ROOT / "hvd_compress").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        if not is_of(file, folder) and not file.relative_to(ROOT).as_posix().startswith(OF_ALL):
            for each in imports_in(file):
                names = (each.module, f"{each.module}.{each.name}")
                is_class = each.module == "hvd_compress.compressors" and each.name in classes
                assert not is_class or any(is_of(file, guest) for guest in FOLDERS), file
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
        for name, place in guest.compressors.items():
            assert place.endswith(f":{COMPRESSORS[name].__name__}")
            assert getattr(compressors, COMPRESSORS[name].__name__) is COMPRESSORS[name]
        for mark, place in guest.collectives.items():
            assert guests.collective(mark).__name__ == place.partition(":")[2]
        for variable, place in guest.recordings.items():
            assert guest.named(place).variable == variable
        for earlier, now in guest.earlier.items():
            module = guest.imported(now)
            classes = [each for each in vars(module).values() if isinstance(each, type)]
            assert classes
            for each in classes:
                assert getattr(import_module(f"hvd_compress.{earlier}"), each.__name__) is each


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
MISSING = "import sys; sys.path.insert(0, ''); import alone; import tests.unit.test_guests as own; own.assert_missing()"


@pytest.mark.level2
def test_the_core_does_without(tmp_path: Path) -> None:
    place = left(tmp_path / "left")
    asked = json.dumps(
        [
            [
                g.folder,
                list(g.commands.items()),
                list(g.compressions),
                list(g.compressors.items()),
                list(g.earlier),
                list(g.recordings),
                list(g.collectives),
            ]
            for g in HERE
        ]
    )
    tests = ("-q", "-x", "-n", "2", "-p", "no:cacheprovider", "-p", "alone", "-m", "not level2", *CORE)
    for program, *words in ((RUN, *tests), (MISSING, asked)):
        call = [sys.executable, "-c", program, *words]
        done = subprocess.run(call, cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def assert_missing() -> None:
    """Where guests were removed, what they bring is not offered, and says what is missing where it is asked for."""
    for folder, commands, compressions, named, earlier, recordings, marks in json.loads(sys.argv[1]):
        said = f"comes with hvd_compress/{folder}, which is not part"
        for words, does in commands:
            *group, _ = words.split()
            assert does not in CliRunner().invoke(main, [*group, "--help"], terminal_width=200).output
            asked = CliRunner().invoke(main, words.split())
            assert asked.exit_code == 2, asked.output
            assert said in " ".join(asked.output.split()), asked.output
        for name in compressions:
            with pytest.raises(UnknownCompressionError, match=rf"Compression\.{name}\(\) {said}"):
                getattr(Compression, name)
        for name, place in named:
            with pytest.raises(ConfigError, match=rf"'{name}' {said}"):
                compressor_named(name)
            with pytest.raises(AttributeError, match=said):
                getattr(compressors, place.partition(":")[2])
            assert place.partition(":")[2] not in compressors.__all__
            assert name not in [*COMPRESSORS]
        for module in earlier:
            with pytest.raises(ConfigError, match=rf"{module}\.Any {said}"):
                pickle.loads(f"chvd_compress.{module}\nAny\n.".encode())
        for mark in marks:
            with pytest.raises(ConfigError, match=f"'{mark}' {said}"):
                Request(TopK(0.1), mark)
            assert mark not in collectives.labels()
        for variable in recordings:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(variable, "asked for")
                with pytest.raises(ConfigError, match=f"{variable} {said}"):
                    Settings.from_environment()
    namespace: dict[str, object] = {}
    exec("from hvd_compress.ddp import *", namespace)
    assert "compress" in namespace
