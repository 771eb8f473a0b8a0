"""A file that is valid JSON at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hvd_compress.settings import Settings
from hvd_compress.timeline.array_file import BLANK_BYTES, PAGE_BYTES, JsonArrayFile


def test_after_every_record_the_file_holds_all_of_them(tmp_path: Path) -> None:
    """Of all lengths, so that they meet the ends of pages and of the blanks in all ways; two are longer than a page."""
    path = tmp_path / "new" / "array.json"
    file = JsonArrayFile(path)
    assert json.loads(path.read_text()) == []
    records = [{"number": n, "text": "ä" * (n * 37 % 1900)} for n in range(150)]
    records[100]["text"] = records[101]["text"] = "x" * (2 * PAGE_BYTES)
    for number, record in enumerate(records, start=1):
        file.add(record)
        assert json.loads(path.read_text()) == records[:number]
    assert path.stat().st_size > 2 * BLANK_BYTES
    file.close()
    assert json.loads(path.read_text()) == records
    assert path.read_bytes().endswith(b"}\n]\n")
    assert os.listdir(path.parent) == ["array.json"]


def test_no_write_crosses_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a one may be cut short when the process is killed."""
    writes = []
    monkeypatch.setattr(os, "pwrite", lambda fd, text, at: writes.append((at, len(text))) or _pwrite(fd, text, at))
    file = JsonArrayFile(tmp_path / "array.json")
    for number in range(400):
        file.add({"text": "x" * (number * 61 % 1500)})
    assert len(writes) > 300
    assert all(at // PAGE_BYTES == (at + length - 1) // PAGE_BYTES for at, length in writes)


_pwrite = os.pwrite


def test_what_is_no_json_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    file = JsonArrayFile(tmp_path / "array.json")
    with pytest.raises(ValueError, match="JSON"):
        file.add({"seconds": float("nan")})
    file.add({"seconds": 1.0})
    assert json.loads((tmp_path / "array.json").read_text()) == [{"seconds": 1.0}]


def test_a_file_that_is_replaced_meanwhile_is_not_written_to_by_halves(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    first, second = JsonArrayFile(path), JsonArrayFile(path)
    second.add({"of": "second"})
    first.add({"of": "first"})
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
