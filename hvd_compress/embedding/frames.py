"""Files of records, appended step by step; a process that is killed leaves a last frame that may be cut off."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hvd_compress.errors import JournalError

_HEADER = np.dtype(
    [("mark", "<i8"), ("step", "<i8"), ("part", "<i8"), ("rows", "<i8"), ("width", "<i8"), ("crc", "<i8")]
)
_MARK = 0x314C414E52554F4A  # "JOURNAL1"
_END = -1  # in the place of a part: a step is complete


class Frame(NamedTuple):
    """Where a file has the records of some rows, as a step has left them.

    Attributes:
        step: how many steps were trained then.
        part: the number of the embedding.
        offset: bytes from the begin of the file on.
        crc: CRC-32 of header and content.
    """

    path: Path
    step: int
    part: int
    rows: int
    width: int
    offset: int
    crc: int

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids of rows, int64 (n,), and their records, float32 (n, width).

        Raises JournalError where they are damaged.
        """
        ids, records = self._content()
        if not self._fits(ids, records):
            raise JournalError(f"{self.path} is damaged at byte {self.offset}: remove it, and an older base is taken")
        return torch.from_numpy(ids), torch.from_numpy(records).view(self.rows, self.width)

    def is_whole(self) -> bool:
        """Read it, and return whether it is what was written."""
        return self._fits(*self._content())

    def _content(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        ids: npt.NDArray[np.int64] = np.fromfile(self.path, np.int64, self.rows, offset=self.offset)
        offset = self.offset + ids.nbytes
        return ids, np.fromfile(self.path, np.float32, self.rows * self.width, offset=offset)

    def _fits(self, ids: npt.NDArray[np.int64], records: npt.NDArray[np.float32]) -> bool:
        return self.crc == _crc(self.step, self.part, self.width, ids, records)


class Found(NamedTuple):
    """What a file has: frames, and by step that is complete where its end stands, in bytes."""

    frames: list[Frame]
    ends: dict[int, int]


class FrameWriter:
    """Appends frames to a file. Raises JournalError where that cannot be written."""

    def __init__(self, path: Path, anew: bool = False) -> None:
        """`anew`: what it has is removed."""
        self.path = path
        try:
            self._file = path.open("wb" if anew else "ab")
        except OSError as error:
            raise _cannot(path, error) from error

    def write(self, step: int, part: int, ids: torch.Tensor, records: torch.Tensor) -> None:
        """Append the records (n, width) of rows (n,)."""
        self._append(step, part, records.shape[1], ids, records)

    def end(self, step: int) -> None:
        """All that a step has changed is written; it outlives this process."""
        self._append(step, _END, 0, torch.empty(0, dtype=torch.int64), torch.empty(0))
        try:
            self._file.flush()
        except OSError as error:
            raise _cannot(self.path, error) from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise _cannot(self.path, error) from error

    def _append(self, step: int, part: int, width: int, ids: torch.Tensor, records: torch.Tensor) -> None:
        content = ids.contiguous().numpy(), records.contiguous().numpy()
        header = np.array([(_MARK, step, part, ids.numel(), width, _crc(step, part, width, *content))], _HEADER)
        try:
            self._file.write(header.tobytes())
            for each in content if ids.numel() else ():
                self._file.write(each.data)
        except OSError as error:
            raise _cannot(self.path, error) from error


def read(path: Path, checks: bool = False) -> Found:
    """Find the whole frames of a file; what a killed process has not finished is left out.

    `checks`: read their content, and take the first one that is damaged for the end.

    Raises JournalError where something else stands in it.
    """
    found, offset, size = Found([], {}), 0, path.stat().st_size
    while offset + _HEADER.itemsize <= size:
        header = np.fromfile(path, _HEADER, 1, offset=offset)[0]
        if header["mark"] != _MARK or min(header["rows"], header["width"]) < 0:
            if offset == 0 and any(header.tolist()):
                raise JournalError(f"{path} is no journal of embedding rows: remove its folder")
            break  # a loss of power leaves zeros, or anything
        step, part, rows, width, crc = (int(header[name]) for name in ("step", "part", "rows", "width", "crc"))
        begin, offset = offset + _HEADER.itemsize, offset + _HEADER.itemsize + rows * (8 + 4 * width)
        if offset > size:
            break
        frame = Frame(path, step, part, rows, width, begin, crc)
        if checks and not frame.is_whole():
            break
        if part == _END:
            found.ends[step] = offset
        else:
            found.frames.append(frame)
    return found


def cut(path: Path, step: int) -> None:
    """Remove what stands behind the end of a step, and all where that has none."""
    ends = read(path).ends
    os.truncate(path, max((offset for each, offset in ends.items() if each <= step), default=0))


def _crc(step: int, part: int, width: int, ids: npt.NDArray[Any], records: npt.NDArray[Any]) -> int:
    header = np.array([step, part, ids.size, width], "<i8")
    return zlib.crc32(records.data, zlib.crc32(ids.data, zlib.crc32(header.data)))


def _cannot(path: Path, error: OSError) -> JournalError:
    return JournalError(f"cannot write the journal {path}: {error}")
