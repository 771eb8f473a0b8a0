"""A file that is valid JSON at any moment."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
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


def added(file: JsonArrayFile, nbytes: int, first: bool = False) -> dict[str, str]:
    """Add a record that takes so many bytes with what separates it from the one before; return it."""
    record = {"text": "x" * (nbytes - len('{"text": ""}') - (1 if first else 2))}
    file.add(record)
    return record


def test_a_page_is_filled_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits to the byte is written in place, also a whole page; one byte more begins the next page."""
    writes = []
    monkeypatch.setattr(os, "pwrite", lambda fd, text, at: writes.append((at, len(text))) or _pwrite(fd, text, at))
    path = tmp_path / "array.json"
    file = JsonArrayFile(path)
    records = [added(file, PAGE_BYTES - 1, first=True)]  # behind the bracket
    records += [added(file, nbytes) for nbytes in (PAGE_BYTES, 4000, 96, 4000, 97, 50)]
    assert writes == [(1, 4095), (4096, 4096), (8192, 4000), (12192, 96), (12288, 4000), (16384, 97), (16481, 50)]
    assert json.loads(path.read_text()) == records


@pytest.mark.parametrize(("last", "in_place"), [(100, True), (101, False)])
def test_the_blanks_are_used_to_the_last_one(tmp_path: Path, last: int, in_place: bool) -> None:
    path = tmp_path / "array.json"
    file = JsonArrayFile(path)
    records = [
        added(file, 2 * PAGE_BYTES + 99, first=True)
    ]  # longer than a page: written anew, 64 KiB of blanks behind
    assert path.stat().st_size == 2 * PAGE_BYTES + 100 + BLANK_BYTES + len("\n]\n")
    records.append(added(file, PAGE_BYTES - 100))
    records += [added(file, PAGE_BYTES) for _ in range(BLANK_BYTES // PAGE_BYTES - 1)]  # 100 blanks are left
    before = path.stat()
    records.append(added(file, last))
    assert (path.stat().st_ino == before.st_ino) == in_place
    assert (path.stat().st_size == before.st_size) == in_place
    assert json.loads(path.read_text()) == records


def test_a_long_file_is_written_anew_with_a_quarter_more(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    file = JsonArrayFile(path)
    added(file, 399_999, first=True)
    assert path.stat().st_size == 400_000 + 100_000 + len("\n]\n")


def test_one_file_is_open_at_a_time_and_none_behind_close(tmp_path: Path) -> None:
    def held() -> int:
        names = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return sum(os.readlink(name).startswith(str(tmp_path)) for name in names if os.path.lexists(name))

    file = JsonArrayFile(tmp_path / "array.json")
    for _ in range(3):
        added(file, PAGE_BYTES + 1)
        assert held() == 1
    file.close()
    file.close()
    assert held() == 0


@contextmanager
def no_file_beyond(nbytes: int) -> Iterator[None]:
    """As a full disk: what is written beyond is cut short, or refused where nothing of it fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_record_that_is_written_by_halves_is_an_error(tmp_path: Path) -> None:
    file = JsonArrayFile(tmp_path / "array.json")
    with no_file_beyond(50), pytest.raises(OSError, match=r"array.json: a record was written by halves"):
        added(file, 100, first=True)


def test_what_cannot_be_written_anew_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    file = JsonArrayFile(path)
    record = added(file, 100, first=True)
    with no_file_beyond(50), pytest.raises(OSError, match="File too large"):
        added(file, PAGE_BYTES + 1)
    assert json.loads(path.read_text()) == [record]
    assert os.listdir(tmp_path) == ["array.json"]


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
