"""Files as tensors, read page by page."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import torch

from hvd_compress.errors import ConfigError


class MappedFile:
    """A file as a tensor. What is read of it is pages here and there, so nothing around them is read ahead.

    Attributes:
        tensor: shares the file's memory.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Raises ConfigError where the file is there and has another size, or cannot be made."""
        numel = int(np.prod(shape))
        size_bytes = numel * dtype.itemsize
        self._row_bytes = size_bytes // max(1, shape[0])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "w+b") as file:
                found = os.fstat(file.fileno()).st_size
                if found not in (0, size_bytes):
                    raise ConfigError(
                        f"{path} has {found} bytes where this table's shard has {size_bytes}: it is of other tables, "
                        "or of another number of owners; name another folder, or remove it"
                    )
                file.truncate(max(size_bytes, 1))
                self._memory = mmap.mmap(file.fileno(), max(size_bytes, 1))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot map {path}, {size_bytes} bytes of a table: {error}") from error
        self._memory.madvise(mmap.MADV_RANDOM)
        self.tensor = (
            torch.frombuffer(self._memory, dtype=dtype, count=numel).view(shape)
            if numel
            else torch.zeros(shape, dtype=dtype)
        )

    def fetch(self, rows: torch.Tensor) -> None:
        """Let the system read the pages of rows (n,) side by side: each would wait for the disk by itself."""
        first = torch.div(rows * self._row_bytes, mmap.PAGESIZE, rounding_mode="floor")
        last = torch.div((rows + 1) * self._row_bytes - 1, mmap.PAGESIZE, rounding_mode="floor")
        for page in torch.unique(torch.cat([first, last])).tolist():
            self._memory.madvise(mmap.MADV_WILLNEED, page * mmap.PAGESIZE, mmap.PAGESIZE)
