"""What is left of a journal whose files were damaged: an older step, or words that say which file to remove."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.embedding import Journal, frames
from hvd_compress.embedding.frames import Frame, FrameWriter, cut, read
from hvd_compress.engines.inprocess import InProcessEngine
from hvd_compress.errors import CommunicationError, HvdCompressError, JournalError
from tests.embedding.test_journal import STEPS, Trained, in_ranks, newest, rows_of, whole


class KilledError(Exception):
    """In the place of a signal."""


@pytest.fixture(autouse=True)
def bases_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So each is complete two steps behind its begin."""
    plain = Journal.write_dense

    def patient(self: Journal, step: int) -> None:
        wait([base.valid for base in self._bases])
        plain(self, step)

    monkeypatch.setattr(Journal, "write_dense", patient)


def trained_to(folder: Path, until: int) -> tuple[list[Trained], list[int]]:
    """Return ranks, and with how many steps they began."""

    def body(engine: InProcessEngine) -> tuple[Trained, int]:
        trained = Trained(engine, folder)
        return trained, trained.train(until, restores=True)

    found = in_ranks(2, body)
    return [trained for trained, _ in found], [first for _, first in found]


def restored(folder: Path) -> list[int]:
    def body(engine: InProcessEngine) -> int:
        loader = Trained(engine, folder).loader(0)
        try:
            return loader.restore()
        finally:
            loader.close()

    return in_ranks(2, body)


def refused(folder: Path, words: str) -> None:
    def body(engine: InProcessEngine) -> None:
        loader = Trained(engine, folder).loader(0)
        with pytest.raises(JournalError, match=words):
            loader.restore()
        loader.close()

    in_ranks(2, body)


def ends_right(folder: Path, first: int) -> None:
    ranks, firsts = trained_to(folder, STEPS)
    assert firsts == [first, first]
    for found, expected in zip(rows_of(ranks), whole(2), strict=True):
        assert torch.equal(found, expected)


def zero(path: Path, offset: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        assert any(file.read(size))
        file.seek(offset)
        file.write(bytes(size))


def zero_records(frame: Frame) -> None:
    zero(frame.path, frame.offset + 8 * frame.rows, 4 * frame.rows * frame.width)


@pytest.mark.parametrize("lane", ["critical", "later"])
def test_a_damaged_frame_of_a_lane_ends_it(tmp_path: Path, lane: str) -> None:
    trained_to(tmp_path, 18)
    files = [read(path) for path in newest(tmp_path).glob(f"{lane}.*")]
    last = max((frame for file in files for frame in file.frames if frame.rows), key=lambda frame: frame.step)
    zero_records(last)
    ends_right(tmp_path, last.step - 1)


def test_damaged_ids_of_a_lane_end_it(tmp_path: Path) -> None:
    trained_to(tmp_path, 18)
    found = read(newest(tmp_path) / "critical.1-of-2").frames
    last = next(each for each in found if each.rows and each.step == 17)
    zero(last.path, last.offset, 8 * last.rows)
    ends_right(tmp_path, 16)


def test_a_damaged_header_of_a_lane_ends_it(tmp_path: Path) -> None:
    """Also where it tells of a step that is whole."""
    trained_to(tmp_path, 18)
    path = newest(tmp_path) / "critical.1-of-2"
    last = next(each for each in read(path).frames if each.rows and each.step == 17)
    with path.open("r+b") as file:
        file.seek(last.offset - frames._HEADER.itemsize + 8)
        assert file.read(8) == (17).to_bytes(8, "little")
        file.seek(-8, 1)
        file.write((16).to_bytes(8, "little"))
    ends_right(tmp_path, 16)


def test_a_damaged_base(tmp_path: Path) -> None:
    """It is named; without it the one before leads to the same step."""
    trained_to(tmp_path, 18)
    base = newest(tmp_path) / "base.1-of-2"
    assert base.parent.name == "from-15"
    zero_records(read(base).frames[0])
    refused(tmp_path, r"rank 1 cannot restore step 17: .*from-15/base.1-of-2 is damaged at byte \d+: remove it")
    base.unlink()
    ends_right(tmp_path, 17)


def test_a_damaged_dense_part(tmp_path: Path) -> None:
    """It is named; without it the step before is taken."""
    trained_to(tmp_path, 18)
    path = tmp_path / "run-0" / "dense.0-of-2.17"
    weight = torch.load(path, weights_only=False)["dense"]["top"]["weight"].numpy().tobytes()
    content = path.read_bytes()
    assert content.count(weight) == 1
    zero(path, content.index(weight), len(weight))
    refused(tmp_path, r"rank 0 cannot restore step 17: .*dense.0-of-2.17 is damaged: remove it")
    path.unlink()
    ends_right(tmp_path, 16)


def test_a_gap_in_an_older_lane(tmp_path: Path) -> None:
    """What a newer file has leads nowhere, and is removed."""
    trained_to(tmp_path, 18)
    run = tmp_path / "run-0"
    for base in (run / "from-15").glob("base*"):
        base.unlink()
    cut(run / "from-10" / "critical.0-of-2", 12)
    assert restored(tmp_path) == [12, 12]
    assert not list((run / "from-15").iterdir())
    assert max(int(path.suffix[1:]) for path in run.glob("dense.*")) == 12
    ends_right(tmp_path, 12)


def left(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name / "from-0").mkdir(parents=True)
        (folder / name / "from-0" / "base.0-of-2.partial").write_bytes(b"half")
        (folder / name / "dense.0-of-2.0").write_bytes(b"")


def test_a_folder_that_was_left_before_the_first_base(tmp_path: Path) -> None:
    left(tmp_path, "run-0", "run-3")
    assert restored(tmp_path) == [0, 0]
    trained_to(tmp_path, 8)
    assert [path.name for path in tmp_path.glob("run-*")] == ["run-0"]
    assert not list(tmp_path.glob("run-0/from-0/base.0-of-2.partial"))
    ends_right(tmp_path, 7)


def test_a_kill_within_the_first_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Journal._write_base

    def write(self: Journal, *arguments: Any) -> int:
        if self.files.rank == 1:
            raise KilledError
        return plain(self, *arguments)

    def killed(engine: InProcessEngine) -> None:
        loader = Trained(engine, tmp_path).loader(0)
        assert loader.restore() == 0
        with pytest.raises((KilledError, CommunicationError)):
            next(iter(loader))
        with suppress(KilledError, HvdCompressError):
            loader.close()

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_write_base", write)
        in_ranks(2, killed)
    assert list(tmp_path.glob("run-*/dense.*"))
    assert restored(tmp_path) == [0, 0]
    ends_right(tmp_path, 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full")
def test_a_full_disk() -> None:
    ids, records = torch.tensor([3, 5]), torch.ones(2, 2)
    for ends in (True, False):
        writer = FrameWriter(Path("/dev/full"))
        writer.write(1, 0, ids, records)
        if ends:
            with pytest.raises(JournalError, match=r"cannot write the journal /dev/full: .*space"):
                writer.end(1)
        with pytest.raises(JournalError, match=r"cannot write the journal /dev/full: .*space"):
            writer.close()
