"""A JSON array in a file, to which records are added: valid JSON at any moment, also when the process is killed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096
"""A write within one page of a file happens as a whole or not at all: the kernel looks for signals between pages."""
BLANK_BYTES = 64 * 1024
_END = b"\n]\n"


class JsonArrayFile:
    """An array that ends in blanks, which mean nothing to JSON, and a bracket.

    A record takes the place of blanks, in one write that crosses no page. When too few are left, the file is written
    anew with a quarter more, beside the old one, whose name it then takes. close() leaves none.
    """

    def __init__(self, path: Path) -> None:
        """Replace what is there by an empty array.

        Raises OSError where that cannot be written, or where it is a device or a pipe, which must not be replaced.
        """
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._empty, self._fd = path, True, -1
        self._used, self._blank_until = 0, 0
        self._rewrite(b"[", BLANK_BYTES)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record. Raises OSError where that fails, ValueError for what is no JSON, such as NaN."""
        text = (b"\n" if self._empty else b",\n") + json.dumps(record, allow_nan=False).encode()
        self._empty = False
        start, room = self._used, PAGE_BYTES - self._used % PAGE_BYTES
        if len(text) > room:
            start += room
        if len(text) > PAGE_BYTES or start + len(text) > self._blank_until:
            content = os.pread(self._fd, self._used, 0) + text
            self._rewrite(content, max(BLANK_BYTES, len(content) // 4))
            return
        if os.pwrite(self._fd, text, start) != len(text):
            raise OSError(f"{self._path}: a record was written by halves")
        self._used = start + len(text)

    def close(self) -> None:
        """Leave no blanks behind the last record."""
        if self._fd >= 0:
            self._rewrite(os.pread(self._fd, self._used, 0), 0)
            os.close(self._fd)
            self._fd = -1

    def _rewrite(self, content: bytes, blanks: int) -> None:
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            draft.write_bytes(content + b" " * blanks + _END)
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR)
        self._used, self._blank_until = len(content), len(content) + blanks
