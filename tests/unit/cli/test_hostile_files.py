"""Files that are not what a command expects: one sentence that names the file, exit code 2, and never a traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli.main import main
from tests.absurd import leaves, put
from tests.brought import brought
from tests.harness import SHAPES
from tests.unit.profiler import profile_files

Arguments = Callable[[Path], list[Any]]

READERS: dict[str, tuple[str, Arguments]] = {
    "plan check": ("plan.json", lambda folder: ["plan", "check", folder / "plan.json"]),
    **dict(brought("READERS")),
}
"""Each file that a command reads, and the command, given a folder of files."""

ENDS = dict(brought("ENDS"))
"""What is said after such a file is read, where that is no good end."""
PLAN = {
    "version": 1,
    "world_size": 4,
    "buckets": [{"parameters": [name], "compressor": {"name": "topk", "ratio": 0.1}} for name in SHAPES],
    "default": {"compressor": {"name": "blocks", "bits": 8}, "collective": "allgather"},
}
DEEP = 100_000
TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \n\n ",
    "zeros": bytes(4096),
    "bytes": bytes(range(256)) * 8,
    "half a character": b'{"model": "\xc3',
    "another encoding": '{"model": "é"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "half a pair": b'{"model": "\\ud800"}',
    "lists without end": b"[" * DEEP,
    "objects without end": b'{"tensors": ' * DEEP,
    "lists in lists": b"[" * DEEP + b"]" * DEEP,
    "objects in objects": b'{"compressor": ' * DEEP + b"1" + b"}" * DEEP,
    "less deep": b'{"tensors": ' * 2000 + b"1" + b"}" * 2000,
    "a list of deep ones": b"[" + b"[" * 2000 + b"]" * 2000 + b"]",
    "a number": b"1e308",
    "a large number": b"1" + b"0" * 400,
    "digits": b"9" * 5000,
    "beyond floats": b"1e999999",
    "NaN": b"NaN",
    "Infinity": b"[-Infinity]",
    "null": b"null",
    "true": b"true",
    "a text": b'"tensors"',
    "a list": b"[]",
    "a list of a list": b"[[]]",
    "an object": b"{}",
    "a list of objects": b"[{}]",
    "twice the same": b'{"tensors": [], "tensors": []}',
    "a half": b'{"tensors": [{"name": "a", "numel": 10',
    "a zip": b"PK\x03\x04" + bytes(100),
    "a pickle": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00trueq\x01\x85R.",
    "an array": b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }\n",
}
PLACES: dict[str, Callable[[Path], object]] = {
    "nowhere": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to(path.with_name("none")),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files as they should be."""
    folder = profile_files.write(tmp_path_factory.mktemp("hostile") / "files")
    (folder / "plan.json").write_text(json.dumps(PLAN))
    for write in brought("FILES"):
        write(folder)
    return folder


@pytest.fixture
def files(sound: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return copied(sound, tmp_path / "files")


def copied(sound: Path, folder: Path) -> Path:
    shutil.copytree(sound, folder)
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace(str(sound), str(folder)))
    return folder


def run(arguments: list[Any], *more: Any) -> Result:
    return CliRunner(env={"COLUMNS": "400"}).invoke(main, [*map(str, arguments), *map(str, more)])


def require_refusal(done: Result, path: Path) -> None:
    """Raise AssertionError for a traceback, and for words that do not name the file."""
    assert done.exit_code == 2, (done.exit_code, done.exception, done.output[-400:])
    assert isinstance(done.exception, SystemExit), done.exception
    assert "Error: " in done.output
    assert str(path) in done.output
    assert len(done.output) < 3000


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_expected_is_told_in_words(reader: str, files: Path) -> None:
    name, arguments = READERS[reader]
    for text in TEXTS.values():
        (files / name).write_bytes(text)
        require_refusal(run(arguments(files)), files / name)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_told_in_words(reader: str, sound: Path, tmp_path: Path) -> None:
    name, arguments = READERS[reader]
    for number, place in enumerate(PLACES.values()):
        folder = copied(sound, tmp_path / str(number))
        (folder / name).unlink()
        place(folder / name)
        is_listed = name.startswith("traces/") and not os.path.lexists(folder / name)
        require_refusal(run(arguments(folder)), (folder / name).parent if is_listed else folder / name)


LONG = "x" * 300


@pytest.mark.parametrize("reader", READERS)
def test_a_name_that_is_too_long_is_told_in_words(reader: str, files: Path) -> None:
    name, arguments = READERS[reader]
    named = arguments(files)
    option = f"--{name.partition('.')[0]}"
    if files / name in named:
        named[named.index(files / name)] = files / LONG
    elif option in ("--model", "--system", "--compressor"):  # of a folder
        named += [option, files / LONG] if named[1] == "make" else ["--profile", files / LONG]
    else:
        named[named.index((files / name).parent)] = files / LONG
    require_refusal(run(named), files / LONG)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_expected_is_read(reader: str, files: Path) -> None:
    """So that what the others refuse is what they have changed."""
    _, arguments = READERS[reader]
    done = run(arguments(files))
    if reader in ENDS:
        assert (done.exit_code, done.output) == (2, ENDS[reader])
    else:
        assert done.exit_code == 0, (done.output, done.exception)


NUMBERS = (10**400, -(10**400), 1e308, -1e308, 5e-324, float("nan"), float("inf"), -1)
OTHERS = (True, None, "1", "x" * 5000, "[/red] $\\frac{", [], {})
DEEP_LEAF = "[" * 900 + "1" + "]" * 900


def absurd(path: Path) -> Iterator[str]:
    """Yield what a file of JSON, or of lines of JSON, says, with leaves replaced by what nobody has, or left out.

    Of leaves at the same place of several elements of a list, the first.
    """
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    seen: set[tuple[Any, ...]] = set()
    for number, line in enumerate(lines):
        said = json.loads(line)
        for place in leaves(said, strings=True):
            kind = (number, *(key for key in place if isinstance(key, str)))
            if kind in seen:
                continue
            seen.add(kind)
            changed = [json.dumps(put(said, place, leaf)) for leaf in (*NUMBERS, *OTHERS, DEEP_LEAF)]
            changed[-1] = changed[-1].replace(json.dumps(DEEP_LEAF), DEEP_LEAF)
            for text in (*changed, json.dumps(without(said, place))):
                yield "\n".join([*lines[:number], text, *lines[number + 1 :]])


def without(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy without a leaf."""
    changed = deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


@pytest.mark.level2
@pytest.mark.parametrize("reader", [reader for reader, (name, _) in READERS.items() if ".json" in name])
def test_one_absurd_value_is_read_or_told_in_words(reader: str, files: Path) -> None:
    name, arguments = READERS[reader]
    texts = list(absurd(files / name))
    assert len(texts) > 90
    if reader in brought("DRAWING"):  # which draw, for a third of a second
        texts = texts[::11]  # of 17 a leaf: each value, at some leaf, and each leaf
    for text in texts:
        (files / name).write_text(text)
        done = run(arguments(files))
        if done.exit_code != 0:
            require_refusal(done, files / name)


WRITERS: dict[str, Arguments] = {
    **dict(brought("WRITERS")),
}
"""Each file or folder that a command writes, and the command."""


@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_is_told_in_words(writer: str, files: Path) -> None:
    folder, after = writer in brought("FOLDERS"), dict(brought("AFTER")).get(writer, [])
    loop, file, there = (files / f"{name}.png" for name in ("loop", "file", "there"))
    loop.symlink_to(loop)
    file.touch()
    there.mkdir()
    places = [loop, loop / "x.png", file / "x.png", files / f"{'x' * 300}.png", Path("/dev/full") / "x.png"]
    places += [file] if folder else [there, files / "none" / "x.png"]
    for place in places:
        done = run(WRITERS[writer](files), place, *after)
        if place != loop or not place.is_file():  # some take the place of a link
            require_refusal(done, place)
