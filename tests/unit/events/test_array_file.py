"""A file that is valid JSON after each write."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hvd_compress.events.timeline import JsonArrayFile
from hvd_compress.settings import Settings


def test_after_every_write_the_file_holds_all_records(tmp_path: Path) -> None:
    path = tmp_path / "new" / "array.json"
    file = JsonArrayFile(path)
    assert json.loads(path.read_text()) == []
    records = [{"number": n, "text": "ä" * (n * 37 % 1900)} for n in range(150)]
    for number in range(0, 150, 3):
        file.add(records[number : number + 3])
        assert json.loads(path.read_text()) == records[: number + 3]
    file.close()
    file.close()
    assert path.read_bytes().endswith(b"}\n]\n")
    assert os.listdir(path.parent) == ["array.json"]


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text("x" * 10_000)
    with closing(JsonArrayFile(path)) as file:
        file.add([{"of": "this"}])
    assert json.loads(path.read_text()) == [{"of": "this"}]


def test_one_write_adds_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process that is killed between two of them leaves a whole file."""
    writes, pwrite = [], os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, text, at: writes.append(bytes(text)) or pwrite(fd, text, at))
    with closing(JsonArrayFile(tmp_path / "array.json")) as file:
        file.add([{"number": 1}, {"number": 2}])
        file.add([{"number": 3}])
    assert writes == [b'\n{"number": 1},\n{"number": 2}\n]\n', b',\n{"number": 3}\n]\n']


@contextmanager
def no_file_beyond(nbytes: int) -> Iterator[None]:
    """As a full disk: what is written beyond is cut short, or refused where nothing of it fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("more", [28, 0])  # bytes for which there is room
def test_records_that_have_no_room_leave_the_file_as_it_is(more: int, tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    file = JsonArrayFile(path)
    file.add([{"text": "first"}])
    before = path.read_bytes()
    with no_file_beyond(len(before) + more), pytest.raises(OSError, match="No space left"):
        file.add([{"text": "x" * 100}])
    assert path.read_bytes() == before
    file.add([{"text": "second"}])
    file.close()
    assert json.loads(path.read_text()) == [{"text": "first"}, {"text": "second"}]


def test_what_is_no_json_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with closing(JsonArrayFile(tmp_path / "array.json")) as file:
        with pytest.raises(ValueError, match="JSON"):
            file.add([{"seconds": float("nan")}])
        file.add([{"seconds": 1.0}])
    assert json.loads((tmp_path / "array.json").read_text()) == [{"seconds": 1.0}]


def test_a_file_that_is_replaced_meanwhile_is_not_written_to_by_both(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    with closing(JsonArrayFile(path)) as first, closing(JsonArrayFile(path)) as second:
        second.add([{"of": "second"}])
        first.add([{"of": "first"}])
    assert json.loads(path.read_text()) == [{"of": "second"}]


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """As root, /dev/null would be gone for the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        JsonArrayFile(pipe)
    assert pipe.is_fifo()
    words = Settings(timeline=pipe).obstacle(0)
    assert words == f"cannot write HVD_COMPRESS_TIMELINE = {pipe}: it is no regular file, and would be replaced"
